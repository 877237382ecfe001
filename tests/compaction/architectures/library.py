"""How an architecture of the transformers package gets on the list: built offline, from a small configuration."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.compaction.architectures.architecture import Architecture, Inputs, add

Draw = Callable[[torch.Generator, int, Any], Inputs]


def library() -> Any:
    """The package; imported only when a network is built, because that takes time."""
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


class Returned(nn.Module):
    """A model of the package that returns only the tensors of the given names."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, **inputs: Any) -> list[Tensor]:
        out = self.model(**inputs)
        if isinstance(out, Tensor):
            return [out]
        return [out[name] if isinstance(out, dict) else getattr(out, name) for name in self.names]


def pretrained(
    name: str,
    model: str,
    config: Callable[[Any], Any],
    draw: Draw,
    size: Any,
    *others: tuple[int, Any],
    returns: tuple[str, ...] = ("logits",),
    quick: bool = False,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> None:
    """Put a model class of the package, with a configuration, on the list."""

    def build() -> nn.Module:
        made = getattr(library(), model)(config(library()))
        return Returned(prepare(made), returns)

    add(Architecture(name=name, build=build, draw=draw, size=size, others=others, source="transformers", quick=quick))


def pixels(channels: int = 3, key: str = "pixel_values") -> Draw:
    """Draws images under the name that the package has for them."""

    def draw(generator: torch.Generator, batch: int, size: Any) -> Inputs:
        sizes = size if isinstance(size, tuple) else (size, size)
        return {key: torch.randn(batch, channels, *sizes, generator=generator, dtype=torch.float64)}

    return draw


def numbers(key: str, width: int | None = None) -> Draw:
    """Draws rows of numbers over time, each a vector if `width` is given."""

    def draw(generator: torch.Generator, batch: int, size: Any) -> Inputs:
        shape = (batch, size) if width is None else (batch, size, width)
        return {key: torch.randn(shape, generator=generator, dtype=torch.float64)}

    return draw


def words(**more: Any) -> Draw:
    """Draws token numbers below 50; `more` names further inputs of the same kind."""

    def draw(generator: torch.Generator, batch: int, size: Any) -> Inputs:
        keys = ["input_ids", *(key for key, on in more.items() if on)]
        return {key: torch.randint(3, 50, (batch, size), generator=generator) for key in keys}

    return draw


def text(**settings: Any) -> dict[str, Any]:
    """The usual settings of a small text model."""
    return {
        "vocab_size": 50,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        **settings,
    }


EVEN = ((1, 64), (3, 96), (2, 128), (1, 160))
"""Sizes that networks with four or five halvings take."""
MOBILE_VIT = {
    "hidden_sizes": [24, 32, 48],
    "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64],
    "num_labels": 5,
    "image_size": 64,
}


def images(
    name: str,
    model: str,
    config: Callable[[Any], Any],
    size: Any = 48,
    others: tuple[tuple[int, Any], ...] = ((1, 48), (3, 64), (2, 57), (1, 80)),
    **more: Any,
) -> None:
    """Put a network that takes images on the list."""
    pretrained(name, model, config, pixels(), size, *others, **more)
