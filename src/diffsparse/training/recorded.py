"""A finished run, read back from its folder: its network, its inputs and its files."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.training.build import build_model
from diffsparse.training.config import Recipe, read_recipe
from diffsparse.training.folder import RunFolder
from diffsparse.training.run import COMPACT, PLAN, TRAINED, open_recipe_data


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """What the folder of a run records."""

    path: Path
    recipe: Recipe
    network: str
    """The name of the network; method `scratch` trains a narrower one than the recipe names."""
    data: DataSet

    def fresh(self) -> nn.Module:
        """The network as it was before training, whole and without gates."""
        recipe = self.recipe
        return build_model(self.network, recipe.arguments, self.data, recipe.seed, recipe.sparsifying)

    def example(self, count: int = 1) -> Tensor:
        """Inputs that the run was trained on."""
        return self.data.sample(count)

    def check_output(self, path: Path) -> None:
        """Raise if `path` is a file that the run wrote itself."""
        folder = RunFolder(self.path.absolute())
        own = {folder.config, folder.log, folder.result, *(folder.path / name for name in (COMPACT, PLAN, TRAINED))}
        if path.absolute() in own:
            raise SparsityError(f"'{path}' is a file of the run; choose another --output")

    def file(self, name: str) -> Path:
        """A file of the run; raises if it is not there."""
        path = self.path / name
        if not path.is_file():
            words = "it is not finished (train --resume goes on with it), or the file was removed"
            raise SparsityError(f"the run in '{self.path}' has no {name}: {words}")
        return path


def is_run(path: Path) -> bool:
    """Whether `path` is the folder of a run."""
    return RunFolder(path).config.is_file()


def open_run(path: Path) -> RecordedRun:
    """The run in the folder `path`; raises if there is none, or if its data is not where it was."""
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise SparsityError(f"'{path}' is not the folder of a run: there is no {folder.config.name} in it")
    recipe, network = read_recipe(folder.config), None
    if folder.result.is_file():
        network = json.loads(folder.result.read_text(encoding="utf-8")).get("network")
    try:
        data = open_recipe_data(recipe)
    except SparsityError as error:
        by_hand = f"or give the model itself: {recipe.model} --weights FILE --input SHAPE"
        raise SparsityError(f"the data of the run in '{path}' tells its input, but {error}; {by_hand}") from error
    return RecordedRun(path=path, recipe=recipe, network=network or recipe.model, data=data)
