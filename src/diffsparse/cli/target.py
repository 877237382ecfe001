"""A model named on the command line: its class, its weights, its input."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from tyro.conf import Positional

from diffsparse.checkpoint import load
from diffsparse.errors import SparsityError
from diffsparse.models.factory import find_factory, make_named, parse_arguments


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model, its weights and an input for it."""

    model: Positional[str]
    """A name of diffsparse.models.names(), or where your class or a function that makes one is: package.module:Name."""
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
        find_factory(self.model)
        parse_arguments(self.arguments)
        self.example()

    def build(self) -> nn.Module:
        """A fresh instance of the model."""
        torch.manual_seed(self.seed)
        return make_named(self.model, parse_arguments(self.arguments))

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


def check_writable(path: Path, option: str) -> None:
    """Raise if `path` cannot be a file to write."""
    if path.is_dir():
        raise SparsityError(f"{option} must be a file, but {path} is a folder")
    if not path.absolute().parent.is_dir():
        raise SparsityError(f"the folder of {option} does not exist: {path.absolute().parent}")
