"""What operators make of patterns."""

from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.compaction.graph import Node, Value
from diffsparse.compaction.patterns import Pattern, aligned
from diffsparse.compaction.positions import Axis
from diffsparse.compaction.rules import OPAQUE, RULES
from diffsparse.compaction.rules.base import argument, takes_number
from diffsparse.compaction.rules.pointwise import Pointwise
from diffsparse.compaction.sizes import (
    PERMUTING,
    PICKING,
    REDUCING,
    has_trusted_numbers,
    permutation,
    picked_dim,
    reduced_dims,
    windows_of,
)

Lookup: TypeAlias = Callable[[Value], Pattern]
_SAME = {"float", "double", "half", "bfloat16", "to", "type", "contiguous", "clone", "detach"}
_CONVOLVE: dict[str, Any] = {"conv1d": F.conv1d, "conv2d": F.conv2d, "conv3d": F.conv3d}
_POOL: dict[str, Any] = {
    f"{kind}_pool{d}d": getattr(F, f"{kind}_pool{d}d") for kind in ("max", "avg") for d in (1, 2, 3)
}


def evaluate(node: Node, lookup: Lookup) -> list[Pattern]:
    """The patterns of the first outputs, given those of all inputs; none where nothing is certain."""
    if isinstance(RULES.get(node.op), Pointwise):
        return _pointwise(node, lookup)
    handler = HANDLERS.get(node.op)
    return [] if handler is None or not node.args else handler(node, lookup)


def _again(node: Node, replaced: dict[int, Tensor]) -> Any:
    """The result of the operator for other operands, by the `id` of their values."""

    def put(thing: Any) -> Any:
        if isinstance(thing, Value):
            # a copy, because the operator may write to it
            return replaced[id(thing)].clone()
        if isinstance(thing, tuple | list):
            return type(thing)(map(put, thing))
        return thing

    return node.func(*map(put, node.args), **{key: put(thing) for key, thing in node.kwargs.items()})


def _pointwise(node: Node, lookup: Lookup) -> list[Pattern]:
    if node.rule is OPAQUE:
        return []
    if node.op in _SAME:
        return [lookup(node.inputs[0])]
    if takes_number(node.op, node.args, node.kwargs) and not has_trusted_numbers(node):
        return []
    patterns = list(map(lookup, node.inputs))
    joint = None if node.op in {"prelu", "expand_as"} else aligned(patterns)
    if joint is None:
        return []
    data, axes = joint
    result = _again(node, {id(value): tensor for value, tensor in zip(node.inputs, data, strict=True)})
    return [Pattern(result, axes)]


def _per_channel(node: Node, lookup: Lookup) -> list[Pattern]:
    """Batch norm: one scale and shift per channel."""
    pattern = lookup(node.inputs[0])
    if argument(node, 5, "training", False) or len(pattern.axes) < 2 or pattern.axes[1] is not None:
        return []
    return [Pattern(_again(node, {id(value): lookup(value).data for value in node.inputs}), pattern.axes)]


def _linear(node: Node, lookup: Lookup) -> list[Pattern]:
    pattern = lookup(node.inputs[0])
    if pattern.axes[-1] is not None:
        return []
    return [Pattern(_again(node, {id(value): lookup(value).data for value in node.inputs}), pattern.axes)]


def _over_windows(node: Node, pattern: Pattern, border: float) -> tuple[Tensor, tuple[Axis | None, ...], list[Any]]:
    """The contents laid out window after window, the axes of the result, and for each axis which entries are there."""
    windows = windows_of(node)
    assert windows is not None
    data, axes, entries = pattern.data, list(pattern.axes), []
    for dim, window in enumerate(windows, data.dim() - len(windows)):
        axis = axes[dim]
        assert axis is not None
        axes[dim], taken, counted = axis.through(window)
        shape = list(data.shape)
        shape[dim] = 1
        wider = torch.cat([data, data.new_full(shape, border)], dim)
        data = wider.index_select(dim, torch.where(taken < 0, wider.shape[dim] - 1, taken).flatten())
        entries.append((taken >= 0, counted))
    return data, tuple(axes), entries


def _has_windows(node: Node, pattern: Pattern) -> bool:
    windows = windows_of(node)
    if windows is None or any(axis is None for axis in pattern.axes[len(pattern.axes) - len(windows) :]):
        return False
    return node.op == "pad" or (len(pattern.axes) == len(windows) + 2 and pattern.axes[1] is None)


def _convolution(node: Node, lookup: Lookup) -> list[Pattern]:
    pattern = lookup(argument(node, 0, "input"))
    if not _has_windows(node, pattern):
        return []
    weight, bias = lookup(argument(node, 1, "weight")).data, argument(node, 2, "bias")
    groups, convolve = argument(node, 6, "groups", 1), _CONVOLVE[node.op]
    data, axes, _ = _over_windows(node, pattern, 0.0)
    made = convolve(data, weight, None if bias is None else lookup(bias).data, tuple(weight.shape[2:]), groups=groups)
    return [Pattern(made, axes)]


def _max_pool(node: Node, lookup: Lookup) -> list[Pattern]:
    pattern = lookup(node.inputs[0])
    if argument(node, 6, "return_indices", False) or not _has_windows(node, pattern):
        return []
    data, axes, entries = _over_windows(node, pattern, -torch.inf)
    kernel = tuple(inside.shape[1] for inside, _ in entries)
    return [Pattern(_POOL[node.op](data, kernel, kernel), axes)]


def _average_pool(node: Node, lookup: Lookup) -> list[Pattern]:
    pattern = lookup(node.inputs[0])
    if not _has_windows(node, pattern):
        return []
    data, axes, entries = _over_windows(node, pattern, 0.0)
    kernel = tuple(inside.shape[1] for inside, _ in entries)
    sums = _POOL[node.op](data, kernel, kernel) * prod(kernel)
    divisor, with_padding = argument(node, 6, "divisor_override"), argument(node, 5, "count_include_pad", True)
    if divisor is not None:
        return [Pattern(sums / divisor, axes)]
    for back, (inside, counted) in enumerate(reversed(entries)):
        count = (counted if with_padding else inside).sum(1)
        sums = sums / count.view(-1, *[1] * back)
    return [Pattern(sums, axes)]


def _pad(node: Node, lookup: Lookup) -> list[Pattern]:
    pattern = lookup(node.inputs[0])
    if argument(node, 2, "mode", "constant") != "constant" or not _has_windows(node, pattern):
        return []
    data, axes, _ = _over_windows(node, pattern, argument(node, 3, "value") or 0.0)
    return [Pattern(data, axes)]


def _permuted(node: Node, lookup: Lookup) -> list[Pattern]:
    pattern = lookup(node.inputs[0])
    order = permutation(node, len(pattern.axes))
    data = _again(node, {id(node.inputs[0]): pattern.data})
    return [Pattern(data, tuple(None if dim is None else pattern.axes[dim] for dim in order))]


def _pieces(node: Node, lookup: Lookup) -> list[Pattern]:
    pattern = lookup(node.inputs[0])
    if not pattern.has_entries({picked_dim(node, len(pattern.axes))}):
        return []
    made = _again(node, {id(value): lookup(value).data for value in node.inputs})
    return [Pattern(piece, pattern.axes) for piece in ([made] if isinstance(made, Tensor) else made)]


def _joined(node: Node, lookup: Lookup) -> list[Pattern]:
    patterns = list(map(lookup, node.inputs))
    dims = len(patterns[0].axes)
    dim = argument(node, 1, "dim", 0) % dims
    if any(len(pattern.axes) != dims or not pattern.has_entries({dim}) for pattern in patterns):
        return []
    joint = aligned(patterns)
    return [] if joint is None else [Pattern(torch.cat(joint[0], dim), joint[1])]


def _over_entries(node: Node, lookup: Lookup) -> list[Pattern]:
    """Means, maxima, softmax and layer norm over dimensions of entries."""
    pattern = lookup(node.inputs[0])
    dims = len(pattern.axes)
    if node.op == "layer_norm":
        over = set(range(dims - len(argument(node, 1, "normalized_shape")), dims))
    else:
        over = reduced_dims(node, dims)
    if not pattern.has_entries(over) or (node.op.endswith("softmax") and argument(node, 1, "dim") is None):
        return []
    data = _again(node, {id(value): lookup(value).data for value in node.inputs})
    keeps = data.dim() == dims
    return [Pattern(data, tuple(axis for dim, axis in enumerate(pattern.axes) if keeps or dim not in over))]


HANDLERS: dict[str, Callable[[Node, Lookup], list[Pattern]]] = {
    **dict.fromkeys(_CONVOLVE, _convolution),
    **{op: _max_pool if op.startswith("max") else _average_pool for op in _POOL},
    "pad": _pad,
    "linear": _linear,
    "batch_norm": _per_channel,
    **dict.fromkeys(PERMUTING, _permuted),
    **dict.fromkeys(PICKING, _pieces),
    "cat": _joined,
    **dict.fromkeys([*REDUCING, "layer_norm", "softmax", "log_softmax"], _over_entries),
}
