"""The command line that repeats a run."""

import shlex
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from diffsparse.training.config import Recipe


def train_command(recipe: Recipe) -> str:
    """The `diffsparse train` command for `recipe`, with a flag for each setting that is not the default.

    Example:
        >>> from diffsparse.methods import Sparsifying
        >>> train_command(Recipe(epochs=3, augment=False, sparsifying=Sparsifying(macs=0.5)))
        'diffsparse train --no-augment --epochs 3 --macs 0.5'
    """
    return shlex.join(["diffsparse", "train", *_flags(recipe, Recipe())])


def _flags(given: Any, usual: Any) -> Iterator[str]:
    for field in fields(given):
        value, default = getattr(given, field.name), getattr(usual, field.name)
        flag = field.name.replace("_", "-")
        if is_dataclass(value):
            yield from _flags(value, default)
        elif value == default:
            continue
        elif isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag}"
            yield from map(str, value if isinstance(value, tuple) else [value])
