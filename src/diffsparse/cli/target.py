"""A model named on the command line: its class, its weights, its input."""

import importlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tyro.conf import Positional

from diffsparse.checkpoint import load
from diffsparse.errors import SparsityError


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model, its weights and an input for it."""

    model: Positional[str]
    """Where the model's class or a function that makes one is: package.module:Name."""
    arguments: str = "{}"
    """Keyword arguments to call it with, as a JSON object."""
    weights: Path | None = None
    """A file written by diffsparse.save; without it the model is as its class makes it."""
    input: tuple[str, ...] = ("1x3x224x224",)
    """Shape of each input tensor, for example 1x3x32x32; filled with random numbers."""
    seed: int = 0
    """Seed of the model's start and of the input."""

    def check(self) -> None:
        """Raise before any work if the words are wrong."""
        self._factory()
        self._keywords()
        self.example()

    def build(self) -> nn.Module:
        """A fresh instance of the model."""
        torch.manual_seed(self.seed)
        factory, keywords = self._factory(), self._keywords()
        try:
            made = factory(**keywords)
        except Exception as error:
            raise SparsityError(f"{self.model} cannot be called with {self.arguments}: {error}") from error
        if not isinstance(made, nn.Module):
            raise SparsityError(f"{self.model} makes a {type(made).__name__}, not a module")
        return made

    def loaded(self, weights: Path | None = None) -> nn.Module:
        """The model with the given weights, or with its own."""
        path = self.weights if weights is None else weights
        return self.build() if path is None else load(path, self.build())

    def example(self) -> tuple[torch.Tensor, ...]:
        """Random input tensors of the shapes given."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = []
        for text in self.input:
            if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", text):
                raise SparsityError(f"an input shape looks like 1x3x32x32, got {text!r}")
            shapes.append([int(size) for size in re.split("[x,]", text)])
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)

    def _keywords(self) -> dict[str, Any]:
        try:
            keywords = json.loads(self.arguments)
        except json.JSONDecodeError as error:
            raise SparsityError(f"--arguments must be a JSON object, got {self.arguments!r}: {error}") from error
        if not isinstance(keywords, dict):
            raise SparsityError(f"--arguments must be a JSON object, got {self.arguments!r}")
        return keywords

    def _factory(self) -> Callable[..., Any]:
        module, _, name = self.model.partition(":")
        if not module or not name:
            raise SparsityError(f"a model is given as package.module:Name, got {self.model!r}")
        # as python -m does: modules beside the user are found
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise SparsityError(f"cannot find {self.model}: {error}") from error
        if not callable(found):
            raise SparsityError(f"{self.model} is a {type(found).__name__} and cannot be called")
        return found  # type: ignore[no-any-return]


def check_writable(path: Path, option: str) -> None:
    """Raise if `path` cannot be a file to write."""
    if path.is_dir():
        raise SparsityError(f"{option} must be a file, but {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise SparsityError(f"the folder of {option} does not exist: {path.absolute().parent}")
