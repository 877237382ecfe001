"""What all demos do: work in a folder that is kept or not, and train under one bar."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from diffsparse.cli.training_bar import TrainingBar
from diffsparse.errors import SparsityError
from diffsparse.training import Recipe, StoppedError, train


@contextmanager
def demo_folder(keep: Path | None) -> Iterator[Path]:
    """The folder `keep`, which must be new or empty, or one that is gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise SparsityError(f"--output must be a new or empty folder, got {keep}")
    yield keep


def train_all(recipes: Mapping[str, Recipe], folder: Path, console: Console) -> dict[str, dict[str, Any]]:
    """Train by each recipe in a folder of its name within `folder`; returns the results by name."""
    for recipe in recipes.values():
        # before the first network is trained
        recipe.check()
    results = {}
    with TrainingBar(console) as bar:
        for name, recipe in recipes.items():
            bar.title = name
            try:
                results[name] = train(recipe, folder / name, watcher=bar)
            except StoppedError:
                # a demo starts again, it is not resumed
                raise KeyboardInterrupt from None
    return results
