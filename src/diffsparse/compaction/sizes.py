"""The sizes of all tensors of a recorded run, as they follow from each other at every input size."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.positions import Size, Window
from diffsparse.compaction.rules import RULES
from diffsparse.compaction.rules.base import argument
from diffsparse.compaction.rules.pointwise import Pointwise

Sizes: TypeAlias = tuple[Size | None, ...]
"""One per dimension; None where the size is the same for every input of the model."""


class SizeTable:
    """Looks up the sizes of values, and goes through a graph once to find them.

    Args:
        graph: the recorded run.
    """

    def __init__(self, graph: Graph) -> None:
        self._found: dict[int, Sizes] = {}
        for node in graph.nodes:
            made = self._made(node) if node.outputs else []
            for value, sizes in zip(node.outputs, made, strict=False):
                if len(sizes) == len(value.shape):
                    self._found[id(value)] = sizes

    def of(self, value: Value) -> Sizes:
        """The sizes of `value`; new ones, of which nothing is known, if no operator with a rule made it."""
        if id(value) not in self._found:
            stored = value.parameter is not None or (value.known and not value.depends_on_input)
            self._found[id(value)] = tuple(None if stored else Size() for _ in value.shape)
        return self._found[id(value)]

    def _made(self, node: Node) -> list[Sizes]:
        if not node.inputs:
            return []
        if isinstance(RULES.get(node.op), Pointwise) and node.op != "prelu":
            return [_broadcast([(self.of(value), value.shape) for value in node.inputs])]
        handler, source = _HANDLERS.get(node.op), node.args[0] if node.args else None
        if node.op == "cat" and source:
            return [_joined(node, [self.of(value) for value in source])]
        if handler is None or not isinstance(source, Value):
            return []
        # each by itself, because pieces of a tensor may have different sizes
        return [handler(node, self.of(source)) for _ in node.outputs]


def _broadcast(operands: list[tuple[Sizes, Sequence[int]]]) -> Sizes:
    made: list[Size | None] = []
    for back in range(1, max(len(sizes) for sizes, _ in operands) + 1):
        given = [(sizes[-back], shape[-back]) for sizes, shape in operands if len(sizes) >= back]
        moving = {size for size, _ in given if size is not None}
        if not moving or any(size is None and n > 1 for size, n in given):
            made.append(None)
        else:
            made.append(moving.pop() if len(moving) == 1 else Size())
    return tuple(reversed(made))


def _joined(node: Node, parts: list[Sizes]) -> Sizes:
    dim = argument(node, 1, "dim", 0) % len(node.output.shape)
    # all parts are as large along the other dimensions
    along = [sizes[dim] for sizes in parts if len(sizes) == len(node.output.shape)]
    return tuple((Size() if any(along) else None) if d == dim else size for d, size in enumerate(parts[0]))


def has_trusted_numbers(node: Node) -> bool:
    """Whether the numbers given to the operator are the same at every input size.

    Those of torch's own modules are; others may be computed, if anybody has asked for a size before.
    """
    return not node.after_sizes or (node.call is not None and node.call.of_torch)


def windows_of(node: Node) -> list[Window] | None:
    """How a convolution, pool or padding reads the last dimensions of its input; None if that is not certain."""
    if not has_trusted_numbers(node):
        return None
    if node.op == "pad":
        pads = argument(node, 1, "pad")
        return [Window(1, before=pads[i], after=pads[i + 1]) for i in range(len(pads) - 2, -1, -2)]
    spatial, convolves = int(node.op[-2]), node.op.startswith("conv")
    if convolves:
        kernel, dilation, ceil = list(argument(node, 1, "weight").shape[2:]), argument(node, 5, "dilation", 1), False
        strides, padding = _each(argument(node, 3, "stride", 1), spatial), argument(node, 4, "padding", 0)
    else:
        later = node.op.startswith("max")
        kernel = _each(argument(node, 1, "kernel_size"), spatial)
        dilation = argument(node, 4, "dilation", 1) if later else 1
        ceil = argument(node, 5 if later else 4, "ceil_mode", False)
        strides, padding = _each(argument(node, 2, "stride") or kernel, spatial), argument(node, 3, "padding", 0)
    dilations = _each(dilation, spatial)
    around = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    ends = [(n // 2, n - n // 2) for n in around]
    if padding != "same":
        ends = [(n, n) for n in _each(0 if padding == "valid" else padding, spatial)]
    settings = zip(kernel, strides, ends, dilations, strict=True)
    return [Window(k, s, before, after, d, bool(ceil)) for k, s, (before, after), d in settings]


def _each(setting: Any, count: int) -> list[int]:
    several = list(setting) if isinstance(setting, tuple | list) else [setting]
    return several * count if len(several) == 1 else several


def permutation(node: Node, dims: int) -> list[int | None]:
    """For each dimension of the output the dimension of the input that it is; None for a new one of size 1."""
    moved = node.func(torch.empty(tuple(range(2, dims + 2)), device="meta"), *node.args[1:], **node.kwargs)
    return [None if n == 1 else n - 2 for n in moved.shape]


def _permuted(node: Node, sizes: Sizes) -> Sizes:
    return tuple(None if dim is None else sizes[dim] for dim in permutation(node, len(sizes)))


def width_dim(node: Node) -> int | None:
    """The dimension of a layer's input that is always as long as its weights have it."""
    if node.op == "linear":
        return len(node.output.shape) - 1
    if node.op == "batch_norm" and len(node.inputs) > 1:
        return 1
    return len(node.output.shape) - 1 - int(node.op[-2]) if node.op.startswith("conv") else None


def _same(node: Node, sizes: Sizes) -> Sizes:
    width = width_dim(node)
    return tuple(None if dim == width else size for dim, size in enumerate(sizes))


def _linear(node: Node, sizes: Sizes) -> Sizes:
    return (*sizes[:-1], None)


def _windowed(node: Node, sizes: Sizes) -> Sizes:
    windows = windows_of(node)
    behind = len(argument(node, 1, "pad")) // 2 if node.op == "pad" else int(node.op[-2])
    front, last = list(sizes[: len(sizes) - behind]), sizes[len(sizes) - behind :]
    if node.op.startswith("conv"):
        front[-1] = None
    if windows is None:
        return (*front, *(Size() for _ in last))
    return (*front, *(None if size is None else size.through(w) for size, w in zip(last, windows, strict=True)))


def _unknown_pixels(node: Node, sizes: Sizes) -> Sizes:
    behind = len(sizes) - 2 if node.op in {"interpolate", "upsample"} else int(node.op[-2])
    front = list(sizes[: len(sizes) - behind])
    if node.op.startswith("conv"):
        front[-1] = None
    return (*front, *(Size() for _ in range(behind)))


def reduced_dims(node: Node, dims: int) -> set[int]:
    """The dimensions that a mean, sum or maximum runs over."""
    dim = argument(node, 1, "dim")
    several = range(dims) if dim is None or dim == () else dim if isinstance(dim, tuple | list) else [dim]
    return {d % dims for d in several}


def _reduced(node: Node, sizes: Sizes) -> Sizes:
    gone, keep = reduced_dims(node, len(sizes)), argument(node, 2, "keepdim", False)
    return tuple(None if d in gone else size for d, size in enumerate(sizes) if keep or d not in gone)


def _flat(node: Node, sizes: Sizes) -> Sizes:
    first, last = (argument(node, *given) % len(sizes) for given in ((1, "start_dim", 0), (2, "end_dim", -1)))
    inside = sizes[first : last + 1]
    joined = inside[0] if len(inside) == 1 else None if set(inside) == {None} else Size()
    return (*sizes[:first], joined, *sizes[last + 1 :])


def picked_dim(node: Node, dims: int) -> int:
    """The dimension along which a chunk, split or narrow takes pieces."""
    dim = argument(node, 1, "dim") if node.op in {"narrow", "index_select"} else argument(node, 2, "dim", 0)
    return int(dim) % dims


def _pieces(node: Node, sizes: Sizes) -> Sizes:
    dim = picked_dim(node, len(sizes))
    return tuple(Size() if d == dim and size is not None else size for d, size in enumerate(sizes))


PERMUTING = {"permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "mT.__get__", "unsqueeze"}
PICKING = {"chunk", "split", "tensor_split", "narrow", "index_select"}
REDUCING = {"mean", "sum", "amax", "amin"}
_KEEPING = {"batch_norm", "layer_norm", "group_norm", "instance_norm", "softmax", "log_softmax", "normalize", "prelu"}

_HANDLERS: dict[str, Callable[[Node, Sizes], Sizes]] = {
    **dict.fromkeys(_KEEPING | {"flip", "roll", "channel_shuffle", "native_channel_shuffle"}, _same),
    "linear": _linear,
    **{f"{kind}{d}d": _windowed for d in (1, 2, 3) for kind in ("conv", "max_pool", "avg_pool")},
    "pad": _windowed,
    **{f"{kind}{d}d": _unknown_pixels for d in (1, 2, 3) for kind in ("conv_transpose", "adaptive_avg_pool")},
    **{f"adaptive_max_pool{d}d": _unknown_pixels for d in (1, 2, 3)},
    **dict.fromkeys(["interpolate", "upsample"], _unknown_pixels),
    **dict.fromkeys(PERMUTING, _permuted),
    **dict.fromkeys(PICKING, _pieces),
    **dict.fromkeys(REDUCING, _reduced),
    "flatten": _flat,
}
