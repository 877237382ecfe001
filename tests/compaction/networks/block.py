"""A block of a random network, and the kinds of it that there are."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Shape = tuple[int, ...]
SPATIAL: dict[str, Callable[..., nn.Module]] = {}
"""Kinds that take images."""
FLAT: dict[str, Callable[..., nn.Module]] = {}
"""Kinds that take rows of features."""


class Block(nn.Module):
    """A function of itself and its inputs; the function must reach parts only through its first argument."""

    hard = False
    """Whether its code computes with the number of channels, which a narrower tensor does not have."""
    takes_second = False
    """Whether it takes the model's second input as well."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


class MisfitError(Exception):
    """The block does not fit what reaches it."""


def block(where: dict[str, Callable[..., nn.Module]]) -> Callable[[Any], Any]:
    """Make a function of a draw and the shape that reaches it a kind of block."""

    def add(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        where[make.__name__] = make
        return make

    return add
