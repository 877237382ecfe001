"""Operators that only move entries: reshapes, transposes, slices, chunks, shuffles."""

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.rules.base import Rule, argument, pin, unite, widen


class Movement(Rule):
    """Follows channels by moving their labels as the operator moves the entries.

    Where the labels end up along one dimension, that is the channel axis of the output. In between (a channel shuffle
    is reshape, transpose, reshape) they are carried along. The width of what is moved by position stays as it was;
    a plain flattening, transposing or squeezing follows any width.
    """

    reason = "channels are picked or regrouped by position"

    def infer(self, node: Node, graph: Graph) -> bool:
        source = node.inputs[0]
        # an index that is stored in the model is as good as one that is written
        stored = all(value.parameter is not None for value in node.inputs[1:])
        if not stored or node.redo is None or (source.axis is None and source.channel_of_entry is None):
            return False
        base, labels = source.channel_of_entry or (source, _labels(source))
        results = [node.result] if isinstance(node.result, Tensor) else list(node.result)
        moved = node.redo(labels)
        moved = [moved] if isinstance(moved, Tensor) else list(moved)
        for out, result, now in zip(node.outputs, results, moved, strict=True):
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
        if self._follows_any_width(node):
            base, channel = node.output.taken_from  # type: ignore[misc]
            if base.channels == node.output.channels:
                return unite([base, node.output])
            changed = widen(node.output, base.keep[channel])
            wanted = np.zeros(base.channels, bool)
            np.logical_or.at(wanted, channel, node.output.keep)
            return widen(base, wanted) or changed
        return pin([*node.inputs, *node.outputs])

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


def _labels(value: Value) -> Tensor:
    assert value.axis is not None
    shape = [1] * len(value.shape)
    shape[value.axis] = -1
    # a copy with real strides: reshapes must treat it as they treated the data
    return torch.arange(value.channels).view(shape).expand(value.shape).contiguous()


def _only_varying_dim(labels: Tensor) -> int | None:
    varying = [d for d in range(labels.dim()) if labels.shape[d] > 1 and bool((labels.diff(dim=d) != 0).any())]
    return varying[0] if len(varying) == 1 else None


_BY_POSITION = {"channel_shuffle", "native_channel_shuffle", "index_select", "chunk", "split", "tensor_split"}


class PixelShuffle(Rule):
    """A channel of the output is made of r^2 channels of the input, which live and die together."""

    reason = "channels become pixels"

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis is None or source.axis != len(source.shape) - 3:
            return False
        blocks = source.fixed.reshape(out.shape[source.axis], -1)
        numbers = source.numbers.reshape(blocks.shape)
        out.track(source.axis, blocks.all(1) & (numbers == numbers[:, :1]).all(1), node.result)
        return True

    @staticmethod
    def _block(node: Node) -> int:
        return int(argument(node, 1, "upscale_factor")) ** 2

    def needs(self, node: Node) -> None:
        node.inputs[0].need |= np.repeat(node.output.need, self._block(node))

    def unify_widths(self, node: Node) -> bool:
        source, out, block = node.inputs[0], node.output, self._block(node)
        changed = widen(source, np.repeat(out.keep, block))
        return widen(out, np.asarray(source.keep.reshape(-1, block).any(1))) or changed


def names_sizes(node: Node) -> bool:
    """Whether a reshape was given sizes that may be written in the user's code."""
    return node.op in {"view", "reshape", "unflatten", "expand"} and (len(node.args) > 1 or bool(node.kwargs))


_MOVE_ENTRIES = [
    *("view", "reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("swapaxes", "swapdims", "movedim", "moveaxis", "mT.__get__", "chunk", "split", "tensor_split", "unbind"),
    *("narrow", "select", "getitem", "index_select", "flip", "roll", "expand", "pixel_unshuffle"),
    *("channel_shuffle", "native_channel_shuffle", "repeat_interleave"),
]

OPERATORS: dict[str, Rule] = {**dict.fromkeys(_MOVE_ENTRIES, Movement()), "pixel_shuffle": PixelShuffle()}
