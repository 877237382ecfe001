"""Operators that only move entries: reshapes, transposes, slices, chunks, shuffles, concatenation."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Shape, Value
from diffsparse.compaction.masks import Mask
from diffsparse.compaction.rules.assembly import Joined
from diffsparse.compaction.rules.base import EachChannel, Rule, argument, pin, unite, widen
from diffsparse.compaction.rules.dimensions import widen_both
from diffsparse.compaction.rules.embedding import Lookup
from diffsparse.compaction.rules.heads import follow_heads
from diffsparse.compaction.rules.tracks import Tracks


class Movement(Rule):
    """Moves a tensor of channel numbers in the same way as the operator moved the data.

    Channels of the output lie where the numbers vary: along one dimension, or along several in the middle of a channel
    shuffle (reshape, transpose, reshape) or behind a view as heads. Plain flattening, transposing and squeezing follow
    any width; what is moved by position keeps its width.
    """

    reason = "channels are picked or regrouped by position"
    otherwise: ClassVar[Rule | None] = Lookup()
    follows_vectors = True

    def infer(self, node: Node, graph: Graph) -> bool:
        source = node.inputs[0]
        if not self.moves(node) or node.redo is None or source.axes is None:
            return False
        base, numbers = _numbered(source)
        labels = torch.from_numpy(numbers.reshape(source.grid)).expand(source.shape)
        # contiguous, because reshapes must treat it as they treated the data
        moved = _several(node.redo(labels.contiguous()))
        for out, result, now in zip(node.outputs, _several(node.result), moved, strict=True):
            if now.numel() == 0:
                continue
            axes = _varying_dims(now)
            channel = now[tuple(slice(None) if dim in axes else 0 for dim in range(now.dim()))].reshape(-1).numpy()
            out.track(axes, base.fixed[channel], result)
            out.taken_from = (base, channel)
            if base.carried.size and out.axis is not None and base.axis is not None and _moves_alike(node, channel):
                out.carry(base.carried[channel], base.shares[channel])
        return True

    def moves(self, node: Node) -> bool:
        """Whether entries go to the same places each time."""
        # an index that is stored in the model is as fixed as one in the code
        return all(value.parameter is not None for value in node.inputs[1:])

    def needs(self, node: Node) -> None:
        source = node.inputs[0]
        base, numbers = _numbered(source)
        read = np.zeros(base.channels, bool)
        for out in node.outputs:
            if out.taken_from is not None:
                read[out.taken_from[1][out.need]] = True
        source.need |= read[numbers]

    def unify_widths(self, node: Node) -> bool:
        if not self._follows_any_width(node):
            base, numbers = _numbered(node.inputs[0])
            follows = node.heads and not node.rigid and all(out.taken_from is not None for out in node.outputs)
            return follow_heads(node, base, numbers) if follows else pin([base, *node.inputs, *node.outputs])
        base, channel = node.output.taken_from  # type: ignore[misc]
        changed = pin(node.inputs[1:])
        if base.channels == node.output.channels:
            return unite([base, node.output]) or changed
        return widen_both(base, node.output, channel) or changed

    def tie(self, node: Node, tracks: Tracks) -> None:
        base, numbers = _numbered(node.inputs[0])
        if any(out.taken_from is None or out.taken_from[0] is not base for out in node.outputs):
            super().tie(node, tracks)
            return
        tracks.pin(node.inputs[1:])
        tracks.tie(node.inputs[0], base, among=numbers)
        for out in node.outputs:
            tracks.tie(out, base, among=out.taken_from[1])  # type: ignore[index]

    @staticmethod
    def _follows_any_width(node: Node) -> bool:
        if len(node.outputs) != 1 or node.rigid or node.op in _BY_POSITION or node.output.axis is None:
            return False
        base, channel = node.output.taken_from  # type: ignore[misc]
        if base is not node.inputs[0]:
            return False
        block, rest = divmod(len(channel), base.channels)
        return rest == 0 and np.array_equal(channel, np.repeat(np.arange(base.channels), block))

    def refusal(self, node: Node) -> str:
        return "" if self._follows_any_width(node) else f"{node.op}: {self.reason}"


class Like(Movement):
    """Takes the shape of a second tensor, of which nothing else is read."""

    def moves(self, node: Node) -> bool:
        return len(node.inputs) == 2

    def unify_widths(self, node: Node) -> bool:
        (source, other), out = node.inputs, node.output
        alike = out.axis is not None and other.axis == out.axis and other.channels == source.channels == out.channels
        return unite([source, out, other]) if alike and self._follows_any_width(node) else pin([source, other, out])

    def tie(self, node: Node, tracks: Tracks) -> None:
        (source, other), out = node.inputs, node.output
        if other.axes is not None and other.channels == source.channels == out.channels:
            tracks.tie(other, source)
            tracks.tie(out, source)
        else:
            tracks.pin([source, other, out])


def _moves_alike(node: Node, channel: Any) -> bool:
    """Whether all channels are moved in the same way: pixels that became channels are not, nor are picked entries."""
    index = argument(node, 1, "index") if node.op == "getitem" else ()
    places = index if isinstance(index, tuple) else (index,)
    plain = all(place is None or place is ... or isinstance(place, slice | int) for place in places)
    return plain and len(np.unique(channel)) == len(channel)


def _several(made: Any) -> Sequence[Tensor]:
    return [made] if isinstance(made, Tensor) else made


def _numbered(source: Value) -> tuple[Value, np.ndarray[Any, np.dtype[np.int64]]]:
    """The value whose channels are moved, and its channel at each channel of `source`.

    Where a reshape is in progress, that is the value it began with: along a dimension that a reshape merged with the
    batch, its channels repeat.
    """
    if source.axis is None and source.taken_from is not None:
        return source.taken_from
    return source, np.arange(source.channels)


def _varying_dims(labels: Tensor) -> Shape:
    sizes = enumerate(labels.shape)
    return tuple(dim for dim, size in sizes if size > 1 and bool((labels.diff(dim=dim) != 0).any()))


def draws(node: Node) -> bool:
    """Whether it is a dropout that is on."""
    return node.op.endswith("dropout") and True in [argument(node, 2, name) for name in ("training", "train")]


class GivenBack(Movement):
    """Returns its operand, with channels along any dimensions."""

    def infer(self, node: Node, graph: Graph) -> bool:
        if draws(node) or not super().infer(node, graph):
            return False
        node.output.same_as = node.inputs[0]
        return True

    def refusal(self, node: Node) -> str:
        return ""


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
        return widen_both(node.output, node.inputs[0], node.details)


class Concat(Rule):
    """`torch.cat` along the channel axis."""

    reason = "a concatenation that no rule follows"
    otherwise = Joined()

    def infer(self, node: Node, graph: Graph) -> bool:
        parts, out = argument(node, 0, "tensors"), node.output
        if not isinstance(node.result, Tensor) or any(v.axes is not None and v.axis is None for v in parts):
            return False
        dim = argument(node, 1, "dim", 0) % len(out.shape)
        axes = {value.axis for value in parts if value.axis is not None}
        if axes != {dim} or any(len(value.shape) != len(out.shape) for value in parts):
            return False
        fixed = [v.fixed if v.axis is not None else np.zeros(v.shape[dim], bool) for v in parts]
        out.track(dim, np.concatenate(fixed), node.result)
        ends = list(accumulate(map(len, fixed), initial=0))
        node.details = list(zip(parts, map(slice, ends, ends[1:]), strict=True))
        self._carry(node)
        return True

    @staticmethod
    def _carry(node: Node) -> None:
        """Patterns of different parts are different ones."""
        out, carried = node.output, np.zeros(node.output.channels, bool)
        several = []
        for value, piece in node.details:
            if value.carried.size:
                carried[piece] = value.carried
                several.append(np.zeros((out.channels, value.shares.shape[1])))
                several[-1][piece] = value.shares
        if several:
            out.carry(carried, np.concatenate(several, 1))

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


def passes_on(node: Node) -> bool:
    """Whether each channel of the only input becomes the same channel of the only output, as far from the last."""
    source, out = node.inputs[0], node.output
    if source.axis is None or out.axis is None or len(node.outputs) != 1 or source.dim != out.dim:
        return False
    if isinstance(node.rule, Movement) and out.taken_from is not None:
        base, channel = out.taken_from
        return base is source and np.array_equal(channel, np.arange(source.channels))
    return isinstance(node.rule, EachChannel) and source.channels == out.channels


def names_sizes(node: Node) -> bool:
    """Whether a reshape was given sizes that may be written in the user's code."""
    if node.op not in {"view", "reshape", "unflatten", "expand"} or not (len(node.args) > 1 or node.kwargs):
        return False
    # what has one long dimension fits a shape of one dimension at any width
    sizes = node.args[1] if isinstance(node.args[-1], tuple) else node.args[1:]
    if node.kwargs or node.op == "unflatten":
        return True
    # where the size along the channels is to be found out, it is not written
    found = node.op != "expand" and node.output.axis is not None and sizes[node.output.axis] == -1
    return not found and any(size not in (1, -1) for size in sizes)


_MOVE_ENTRIES = [
    *("view", "reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("swapaxes", "swapdims", "movedim", "moveaxis", "mT.__get__", "chunk", "split", "tensor_split", "unbind"),
    *("narrow", "select", "getitem", "index_select", "flip", "roll", "expand", "pixel_unshuffle"),
    *("channel_shuffle", "native_channel_shuffle", "repeat_interleave", "repeat", "tile"),
]

OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(_MOVE_ENTRIES, Movement()),
    **dict.fromkeys(["reshape_as", "view_as", "expand_as"], Like()),
    "pixel_shuffle": PixelShuffle(),
    "cat": Concat(),
}
