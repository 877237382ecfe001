"""`diffsparse train`: from a configuration to a compact network."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from diffsparse.cli.tables import results_table, wide_console
from diffsparse.cli.training_bar import TrainingBar
from diffsparse.training import Recipe, StoppedError, read_recipe, train
from diffsparse.training.processes import own_rank


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a network with gates or by another method, make it compact and save it."""

    recipe: Annotated[Recipe, tyro.conf.OmitArgPrefixes] = field(default_factory=Recipe)
    """The run."""
    config: Path | None = None
    """A TOML file with the configuration; flags win over it."""
    output: Path | None = None
    """Folder of the run; by default runs/MODEL-DATA-METHOD-SEED."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder of the run, with the same configuration."""
    tensorboard: bool = False
    """Write for TensorBoard too."""

    @property
    def folder(self) -> Path:
        """Where the run writes."""
        recipe = self.recipe
        model = recipe.model.replace(":", ".").replace("/", "-")
        name = f"{model}-{recipe.data}-{recipe.sparsifying.method}-{recipe.seed}"
        return Path("runs", name) if self.output is None else self.output

    def run(self) -> None:
        """Train and print the table."""
        console, folder = wide_console(), self.folder
        with TrainingBar(console) as bar:
            try:
                result = train(self.recipe, folder, resume=self.resume, tensorboard=self.tensorboard, watcher=bar)
            except StoppedError as stopped:
                words = f"stopped by {stopped.signal.name}; the same command with --resume goes on from '{folder}'"
                Console(stderr=True).print(f"diffsparse: {words}", markup=False, highlight=False, soft_wrap=True)
                # as a shell reports a program that a signal ended
                sys.exit(128 + stopped.signal)
        # of several processes only the first prints
        if own_rank() == 0:
            console.print(results_table({folder.name: result}))
            console.print(f"files in {folder}", markup=False, soft_wrap=True)


def train_defaults(args: Sequence[str]) -> Train:
    """The settings that flags change: those of the file that --config names, or of the run to resume."""
    config = _argument(args, "--config")
    output = _argument(args, "--output")
    if config is None and output is not None and "--resume" in args and (Path(output) / "config.toml").exists():
        config = str(Path(output) / "config.toml")
    return Train() if config is None else Train(recipe=read_recipe(config))


def _argument(args: Sequence[str], flag: str) -> str | None:
    for position, word in enumerate(args):
        if word == flag and position + 1 < len(args):
            return args[position + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
