"""Tensors put together from others: stacked, concatenated along any dimension, padded, written into slices."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Shape, Value
from diffsparse.compaction.masks import Mask
from diffsparse.compaction.rules.base import Rule, argument, pin, unite
from diffsparse.compaction.rules.dimensions import agree_aligned

_NOTHING = 0
"""The label of entries that come from no tensor: what is padded, zeros that are written."""


class Parts(NamedTuple):
    """What each channel of the result is made of."""

    sources: list[Value]
    """Every tensor that goes in, once."""
    starts: list[int]
    """The first label of each."""
    rows: "np.ndarray[Any, np.dtype[np.int64]]"
    """Channels of the result, each as often as it has labels."""
    labels: "np.ndarray[Any, np.dtype[np.int64]]"
    """The label of a channel that goes into the channel of the result."""


class Assembly(Rule):
    """Runs the operator on labels instead of data; a channel is one number if all that go into it are that number."""

    reason = "tensors are put together in a way that no rule follows"

    def infer(self, node: Node, graph: Graph) -> bool:
        out, result = node.output, node.result
        if node.redo is None or not isinstance(result, Tensor) or 0 in out.shape or not self.applies(node):
            return False
        sources = list({id(value): value for value in node.inputs}.values())
        counts = [max(value.channels, 1) for value in sources]
        starts = (np.cumsum([1, *counts])[:-1]).tolist()
        labels = self._labels(node, dict(zip(map(id, sources), starts, strict=True)))
        if labels is None or labels.shape != result.shape:
            return False
        axes = tuple(sorted({*_varying_within(labels, starts), *self.own_axes(node)}))
        others = [dim for dim in range(labels.dim()) if dim not in axes]
        table = labels.permute(*axes, *others).reshape(int(np.prod([out.shape[dim] for dim in axes])), -1).numpy()
        rows, found = _distinct(table)
        fixed = np.concatenate([[True], *(v.fixed if v.axes is not None else [False] for v in sources)])
        numbers = np.concatenate([[0.0], *(v.numbers if v.axes is not None else [0.0] for v in sources)])
        least, most, known = np.full(len(table), np.inf), np.full(len(table), -np.inf), np.ones(len(table), bool)
        np.minimum.at(least, rows, numbers[found])
        np.maximum.at(most, rows, numbers[found])
        np.logical_and.at(known, rows, fixed[found])
        out.track(axes, known & (least == most), result)
        node.details = Parts(sources, starts, rows, found)
        return True

    def applies(self, node: Node) -> bool:
        """Whether labels can be moved as the data was."""
        return any(value.axes is not None for value in node.inputs)

    def own_axes(self, node: Node) -> Shape:
        """Dimensions of the result that are channels because of what the operator does."""
        return ()

    @staticmethod
    def _labels(node: Node, starts: dict[int, int]) -> Tensor | None:
        """The result of the operator on labels."""
        given = []
        for value in node.inputs:
            numbers = np.arange(max(value.channels, 1)) + starts[id(value)]
            grid = value.grid if value.axes is not None else (1,) * len(value.shape)
            given.append(torch.from_numpy(numbers.reshape(grid)).expand(value.shape).clone())
        made = node.redo(*given)  # type: ignore[misc]
        return given[0] if made is None else made if isinstance(made, Tensor) else None

    def needs(self, node: Node) -> None:
        parts: Parts = node.details
        read = parts.labels[node.output.need[parts.rows]]
        for value, start in zip(parts.sources, parts.starts, strict=True):
            if value.axes is not None:
                own = read[(read >= start) & (read < start + value.channels)]
                value.need[own - start] = True

    def unify_widths(self, node: Node) -> bool:
        values = [*node.details.sources, node.output]
        return unite(values) if self.follows(node) else pin(values)

    def follows(self, node: Node) -> bool:
        """Whether each channel is made of the same channel of every tensor, whatever the width."""
        parts, out = node.details, node.output
        if out.axis is None or any(v.axis is None or v.channels != out.channels for v in parts.sources):
            return False
        made = parts.labels != _NOTHING
        at = np.searchsorted(parts.starts, parts.labels[made], side="right") - 1
        same: Mask = parts.labels[made] - np.array(parts.starts)[at] == parts.rows[made]
        return bool(same.all())

    def refusal(self, node: Node) -> str:
        return "" if self.follows(node) else f"{node.op}: channels are put together by position"


class Joined(Assembly):
    """`cat`, `hstack` and friends, along any dimension."""

    def unify_widths(self, node: Node) -> bool:
        if self.follows(node):
            return super().unify_widths(node)
        values = [*node.details.sources, node.output]
        if any(len(value.shape) != len(node.output.shape) for value in values):
            return pin(values)
        return agree_aligned(values, apart=(self._dim(node) - len(node.output.shape),))

    @staticmethod
    def _dim(node: Node) -> int:
        if node.op != "cat":
            return {"hstack": 1, "vstack": 0, "dstack": 2}[node.op]
        return int(argument(node, 1, "dim", 0)) % len(node.output.shape)

    def own_axes(self, node: Node) -> Shape:
        dims, dim = len(node.output.shape), self._dim(node)
        along = any(dim in (value.axes or ()) and len(value.shape) == dims for value in node.inputs)
        return (dim,) if along and dim < dims else ()


class Stacked(Assembly):
    """`stack`: what is stacked is told apart."""

    def own_axes(self, node: Node) -> Shape:
        return (argument(node, 1, "dim", 0) % len(node.output.shape),)


class Padded(Assembly):
    """`F.pad` around channels, with zeros."""

    def applies(self, node: Node) -> bool:
        zeros = argument(node, 2, "mode", "constant") == "constant" and not argument(node, 3, "value", None)
        return zeros and super().applies(node)

    def own_axes(self, node: Node) -> Shape:
        return node.inputs[0].axes or ()


class Written(Assembly):
    """`x[...] = y`: numbers other than zero are not followed."""

    def applies(self, node: Node) -> bool:
        index, written = node.args[1:3]
        zero = isinstance(written, int | float) and written == 0
        places = index if isinstance(index, tuple) else (index,)
        plain = not any(isinstance(place, Value | tuple | list) for place in places)
        return plain and (zero or isinstance(written, Value)) and super().applies(node)

    def own_axes(self, node: Node) -> Shape:
        return node.inputs[0].axes or ()

    def follows(self, node: Node) -> bool:
        return False


def _varying_within(labels: Tensor, starts: list[int]) -> list[int]:
    """Dimensions along which labels of one and the same tensor vary."""
    bounds = torch.tensor(starts)
    origin = torch.searchsorted(bounds, labels, right=True)
    found = []
    for dim in range(labels.dim()):
        if labels.shape[dim] > 1 and bool(((labels.diff(dim=dim) != 0) & (origin.diff(dim=dim) == 0)).any()):
            found.append(dim)
    return found


def _distinct(table: Any) -> tuple[Any, Any]:
    """The different entries of each row: rows, and entries."""
    if (table == table[:, :1]).all():
        return np.arange(len(table)), table[:, 0].copy()
    span = int(table.max()) + 1
    pairs = np.unique(table + np.arange(len(table))[:, None] * span)
    return pairs // span, pairs % span


OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(["hstack", "vstack", "dstack"], Joined()),
    "stack": Stacked(),
    "setitem": Written(),
}
