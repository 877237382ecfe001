"""Operators that only move entries: reshapes, transposes, slices, chunks, shuffles, concatenation."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.graph import Graph, Mask, Node, Shape, Value
from diffsparse.compaction.rules.base import Rule, argument, pin, unite, widen


class Movement(Rule):
    """Moves a tensor of channel numbers in the same way as the operator moved the data.

    If the numbers then vary along one dimension only, that is the channel axis of the output. Otherwise they are
    carried along: a channel shuffle is reshape, transpose, reshape. Plain flattening, transposing and squeezing follow
    any width; what is moved by position keeps its width.
    """

    reason = "channels are picked or regrouped by position"

    def infer(self, node: Node, graph: Graph) -> bool:
        source = node.inputs[0]
        # an index that is stored in the model is as fixed as one in the code
        stored = all(value.parameter is not None for value in node.inputs[1:])
        if not stored or node.redo is None:
            return False
        if source.channel_of_entry is not None:
            base, labels = source.channel_of_entry
        elif source.axis is not None:
            base, labels = source, _labels(source.shape, source.axis)
        else:
            return False
        for out, result, now in zip(node.outputs, _several(node.result), _several(node.redo(labels)), strict=True):
            axis = _only_varying_dim(now)
            if axis is None:
                out.channel_of_entry = (base, now)
                continue
            channel = now.movedim(axis, 0).reshape(now.shape[axis], -1)[:, 0].cpu().numpy()
            out.track(axis, base.fixed[channel], result)
            out.taken_from = (base, channel)
        return True

    def needs(self, node: Node) -> None:
        for out in node.outputs:
            if out.taken_from is not None:
                base, channel = out.taken_from
                np.logical_or.at(base.need, channel, out.need)

    def unify_widths(self, node: Node) -> bool:
        if not self._follows_any_width(node):
            return pin([*node.inputs, *node.outputs])
        base, channel = node.output.taken_from  # type: ignore[misc]
        if base.channels == node.output.channels:
            return unite([base, node.output])
        return _widen_both(base, node.output, channel)

    @staticmethod
    def _follows_any_width(node: Node) -> bool:
        if len(node.outputs) != 1 or node.rigid or node.op in _BY_POSITION or node.output.taken_from is None:
            return False
        base, channel = node.output.taken_from
        if base is not node.inputs[0]:
            return False
        block, rest = divmod(len(channel), base.channels)
        return rest == 0 and np.array_equal(channel, np.repeat(np.arange(base.channels), block))

    def refusal(self, node: Node) -> str:
        return "" if self._follows_any_width(node) else f"{node.op}: {self.reason}"


def _widen_both(coarse: Value, fine: Value, channel: Any) -> bool:
    """Keep a channel of `coarse` and the channels of `fine` that belong to it together; whether anything changed."""
    wanted = np.zeros(coarse.channels, bool)
    np.logical_or.at(wanted, channel, fine.keep)
    changed = widen(fine, coarse.keep[channel])
    return widen(coarse, wanted) or changed


def _several(made: Any) -> Sequence[Tensor]:
    return [made] if isinstance(made, Tensor) else made


def _labels(shape: Shape, axis: int) -> Tensor:
    view = [1] * len(shape)
    view[axis] = -1
    # contiguous, because reshapes must treat it as they treated the data
    return torch.arange(shape[axis]).view(view).expand(shape).contiguous()


def _only_varying_dim(labels: Tensor) -> int | None:
    varying = [d for d in range(labels.dim()) if labels.shape[d] > 1 and bool((labels.diff(dim=d) != 0).any())]
    return varying[0] if len(varying) == 1 else None


_BY_POSITION = {"channel_shuffle", "native_channel_shuffle", "index_select", "chunk", "split", "tensor_split"}


class PixelShuffle(Rule):
    """Each channel of the output is made of r^2 channels of the input, which stay or go together."""

    reason = "channels become pixels"

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis is None or source.axis != len(source.shape) - 3:
            return False
        blocks = source.fixed.reshape(out.shape[source.axis], -1)
        numbers = source.numbers.reshape(blocks.shape)
        out.track(source.axis, blocks.all(1) & (numbers == numbers[:, :1]).all(1), node.result)
        node.details = np.repeat(np.arange(len(blocks)), blocks.shape[1])
        return True

    def needs(self, node: Node) -> None:
        node.inputs[0].need |= node.output.need[node.details]

    def unify_widths(self, node: Node) -> bool:
        return _widen_both(node.output, node.inputs[0], node.details)


class Concat(Rule):
    """`torch.cat` along the channel axis."""

    reason = "a concatenation along another dimension than the channels"

    def infer(self, node: Node, graph: Graph) -> bool:
        parts, out = argument(node, 0, "tensors"), node.output
        if not isinstance(node.result, Tensor) or any(v.channel_of_entry is not None for v in parts):
            return False
        dim = argument(node, 1, "dim", 0) % len(out.shape)
        axes = {value.axis for value in parts if value.axis is not None}
        if axes != {dim} or any(len(value.shape) != len(out.shape) for value in parts):
            return False
        fixed = [v.fixed if v.axis is not None else np.zeros(v.shape[dim], bool) for v in parts]
        out.track(dim, np.concatenate(fixed), node.result)
        ends = list(accumulate(map(len, fixed), initial=0))
        node.details = list(zip(parts, map(slice, ends, ends[1:]), strict=True))
        return True

    def needs(self, node: Node) -> None:
        for value, piece in node.details:
            if value.axis is not None:
                value.need |= node.output.need[piece]

    def unify_widths(self, node: Node) -> bool:
        changed = False
        for value, piece in node.details:
            present: Mask = np.zeros(node.output.channels, bool)
            if value.axis is not None:
                changed |= widen(value, node.output.keep[piece])
            present[piece] = value.keep if value.axis is not None else True
            changed |= widen(node.output, present)
        return changed


def names_sizes(node: Node) -> bool:
    """Whether a reshape was given sizes that may be written in the user's code."""
    return node.op in {"view", "reshape", "unflatten", "expand"} and (len(node.args) > 1 or bool(node.kwargs))


_MOVE_ENTRIES = [
    *("view", "reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("swapaxes", "swapdims", "movedim", "moveaxis", "mT.__get__", "chunk", "split", "tensor_split", "unbind"),
    *("narrow", "select", "getitem", "index_select", "flip", "roll", "expand", "pixel_unshuffle"),
    *("channel_shuffle", "native_channel_shuffle", "repeat_interleave"),
]

OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(_MOVE_ENTRIES, Movement()),
    "pixel_shuffle": PixelShuffle(),
    "cat": Concat(),
}
