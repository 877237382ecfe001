"""What the test bed knows about an architecture, and the list of all."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Size = int | tuple[int, ...]
Inputs = dict[str, Any] | tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A network, what it takes, and the sizes to compare it at."""

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[torch.Generator, int, Any], Inputs]
    """Inputs from a generator, a batch size and a size."""
    batch: int = 2
    size: Any
    """Of the example."""
    others: tuple[tuple[int, Any], ...]
    """Batch sizes and sizes to compare at."""
    source: str = "written"
    """`written` or `transformers`."""
    quick: bool = False
    """Whether `make test` runs it."""
    whole: bool = True
    """Whether some layers die as a whole; not where the places of large numbers matter, which have no gradient."""

    def inputs(self, seed: int, batch: int | None = None, size: Any = None) -> Inputs:
        """Random inputs; those of the example unless told otherwise."""
        generator = torch.Generator().manual_seed(seed)
        return self.draw(generator, self.batch if batch is None else batch, self.size if size is None else size)

    def made(self, seed: int = 0) -> nn.Module:
        """The network with the start that a seed gives, in float64 and eval mode."""
        random.seed(seed)
        torch.manual_seed(seed)
        return self.build().double().eval()


ARCHITECTURES: dict[str, Architecture] = {}


def add(architecture: Architecture) -> None:
    """Put an architecture on the list."""
    assert architecture.name not in ARCHITECTURES, f"two architectures are called {architecture.name}"
    ARCHITECTURES[architecture.name] = architecture


def image(channels: int) -> Callable[[torch.Generator, int, Any], Inputs]:
    """Draws one image, sound or film per sample; a size is one number per dimension."""

    def draw(generator: torch.Generator, batch: int, size: Any) -> Inputs:
        sizes = size if isinstance(size, tuple) else (size, size)
        return (torch.randn(batch, channels, *sizes, generator=generator, dtype=torch.float64),)

    return draw


def written(
    name: str, *, channels: int = 3, size: Any = (24, 24), others: Any = None, draw: Any = None, **more: bool
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Put a network of this folder on the list; by default it takes images and is compared at four sizes."""
    if others is None:
        others = ((1, size), (3, tuple(n + 8 for n in size)), (2, tuple(n + 1 for n in size)), (1, (16,) * len(size)))

    def note(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        given = draw or image(channels)
        add(Architecture(name=name, build=build, draw=given, size=size, others=others, **more))
        return build

    return note
