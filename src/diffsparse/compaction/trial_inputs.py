"""Inputs like the example, of other sizes and with other numbers: what a compact model is tried on."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.example import is_mask, map_tensors


def other_inputs(example: Any) -> Iterator[Any]:
    """Inputs to try, the most telling first; smaller sizes than the example's show as much as larger ones."""
    generator = torch.Generator().manual_seed(0)
    yield random_like(_one_more(_resized(example, 4)), generator)
    yield random_like(_one_more(_resized(example, 2)), generator)
    yield random_like(_resized(example, 2), generator)
    yield random_like(_one_more(_resized(example, 1)), generator)
    yield random_like(_one_more(example), generator)
    yield random_like(example, generator)
    # for a model that does not take random numbers
    yield _one_more(_resized(example, 1))
    yield _one_more(example)


# Even and odd, each remainder of three, and different ones behind strides of 2, 4 and 8; wider than high, and not.
_MORE_PIXELS = ((0, 1), (1, 0), (2, 5), (5, 2), (10, 10))
_SMALL = 16


def at_other_sizes(example: Any) -> Iterator[Any]:
    """Inputs of sizes that code which pads or branches by sizes may treat differently; small ones, and a larger one."""
    generator = torch.Generator().manual_seed(1)
    for extra in _MORE_PIXELS:
        yield random_like(_resized(example, 4, extra), generator)
    larger = _with_sizes(example, lambda back, size: 4 * size + 1 if size <= _SMALL else size + size // 2 + 1)
    yield random_like(larger, generator)


def with_one_sample(example: Any) -> Any:
    """A small input with one sample, which code may treat differently, too."""
    small = _resized(example, 4, _MORE_PIXELS[0])
    first = map_tensors(lambda tensor: tensor[:1] if tensor.dim() > 0 else tensor, small)
    return random_like(first, torch.Generator().manual_seed(2))


def with_other_masks(example: Any) -> Any:
    """The example with masks that hide nothing, or the last entry where those of the example hide nothing."""

    def changed(tensor: Tensor) -> Tensor:
        if not is_mask(tensor):
            return tensor
        other = torch.ones_like(tensor)
        if bool(tensor.all()) and tensor.shape[1] > 1:
            other[:, -1] = 0
        return other

    return map_tensors(changed, example)


def random_like(thing: Any, generator: torch.Generator) -> Any:
    """Random numbers in place of floating-point tensors; everything else as it is."""

    def draw(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor)

    return map_tensors(draw, thing)


def _one_more(thing: Any) -> Any:
    """Tensors with their first sample added at the end."""
    return map_tensors(lambda tensor: torch.cat([tensor, tensor[:1]]) if tensor.dim() > 0 else tensor, thing)


def _resized(thing: Any, divisor: int, extra: tuple[int, int] = (0, 0)) -> Any:
    """Images of about a quarter (4) or half (2) of each spatial size, or one pixel larger (1 and small images).

    They are larger than that by `extra`: the first number for the last dimension, the second for the others.
    """

    def new_size(back: int, size: int) -> int:
        parts = [part for part, least in ((4, 8), (2, 2)) if part <= divisor and size > least]
        return (size // parts[0] if parts else size) + 1 + extra[back > 0]

    return _with_sizes(thing, new_size)


def _with_sizes(thing: Any, new_size: Callable[[int, int], int]) -> Any:
    """Images of other sizes, given how far each dimension is from the last, and its size."""

    def resize(tensor: Tensor) -> Tensor:
        if tensor.dim() < 3 or not tensor.is_floating_point():
            return tensor
        more = [new_size(back, size) - size for back, size in enumerate(reversed(tensor.shape[2:]))]
        return F.pad(tensor, [n for by in more for n in (0, by)], value=0.5)

    return map_tensors(resize, thing)
