"""Products summed over dimensions: matrix products and einsum, by contraction of masks."""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import Mask, as_array, every, indices, some
from diffsparse.compaction.rules.base import Rule, argument, pin, read_all, unite
from diffsparse.compaction.rules.dimensions import agree_along, count_along
from diffsparse.compaction.rules.grid import Grid, flattened, read
from diffsparse.compaction.rules.tracks import Tracks
from diffsparse.compaction.tensor_slice import TensorSlice

Labels: TypeAlias = list[int]
"""One number per dimension of a tensor; equal numbers stand for the same index, as letters of einsum do."""

_SUMMED, _ROW, _COLUMN, _BATCH = 0, 1, 2, 3


class Product(NamedTuple):
    """A sum of products in the form of einsum, and where each factor is not known to be zero."""

    factors: list[Value]
    labels: list[Labels]
    result: Labels
    live: list[Grid]


class Contraction(Rule):
    """An output is zero if each of its products has a zero factor; a factor is read where the others are not zero."""

    reason = "a product that no rule follows"

    def infer(self, node: Node, graph: Graph) -> bool:
        out = node.output
        spelled = self.spelled(node)
        if spelled is None or len(node.outputs) != 1 or not isinstance(node.result, Tensor):
            return False
        factors, labels, result = spelled
        if all(value.axes is None for value in factors):
            return False
        kept = {label for value, own in zip(factors, labels, strict=True) for label in _along(value, own)}
        grids = [_grids(value, own, kept, graph) for value, own in zip(factors, labels, strict=True)]
        product = Product(factors, labels, result, [live for live, _ in grids])
        axes = tuple(dim for dim, label in enumerate(result) if _widest(label, product) > 1)
        known = [
            value.parameter is not None and not loose.any() for value, (_, loose) in zip(factors, grids, strict=True)
        ]
        if len(factors) == 2 and any(known):
            # constants times stored weights, of which there are as many at every size of the input
            counted = [live if stored else loose for stored, (live, loose) in zip(known, grids, strict=True)]
        else:
            counted = product.live
        fixed = flattened(~_sums(counted, labels, result), out, axes)
        if not all(map(_is_zero, self.added(node))):
            fixed = np.zeros_like(fixed)
        out.track(axes, fixed, node.result)
        node.details = product
        return True

    def spelled(self, node: Node) -> tuple[list[Value], list[Labels], Labels] | None:
        """The factors, their labels and those of the result; None if they are not understood."""
        return _of_matrices(*node.inputs) if len(node.inputs) == 2 else None

    def added(self, node: Node) -> list[Value]:
        """What is added to the product."""
        return []

    def needs(self, node: Node) -> None:
        product: Product = node.details
        needed = [node.output.need.reshape(node.output.grid)]
        for at, value in enumerate(product.factors):
            if value.axes is None:
                continue
            own = product.labels[at]
            others = [i for i in range(len(product.factors)) if i != at]
            shown = [*needed, *(product.live[i] for i in others), np.ones(value.grid, bool)]
            reads = _sums(shown, [product.result, *(product.labels[i] for i in others), own], own)
            read(value, reads & ~value.zero.reshape(value.grid))
        for value in self.added(node):
            read_all(value)

    def leans_on(self, node: Node) -> list[tuple[Value, Mask]]:
        # a zero makes a product zero, whatever the other factor is there
        moving = [value for value in node.details.factors if value.axes is not None]
        return [(value, value.zero) for value in moving] if some(node.output.need) else []

    def unify_widths(self, node: Node) -> bool:
        changed = bool(self.added(node)) and pin([*self.added(node), node.output])
        for group in _groups(node):
            values = [value for value, _ in group if value.axes is not None]
            changed |= unite(values) if _follows(group, node) else agree_along(group)
        return changed

    def tie(self, node: Node, tracks: Tracks) -> None:
        product: Product = node.details
        terms = [*zip(product.factors, product.labels, strict=True), (node.output, product.result)]
        for label in sorted({label for _, own in terms for label in own}):
            around = [(value, own) for value, own in terms if label in own]
            tracked = [(v, own) for v, own in around if v.axes is not None and own.index(label) in v.axes]
            for value, own in tracked:
                # what is summed, or passed on from one factor, may have any order
                (tracks.any_order if len(around) == 2 else tracks.in_order)(value, own.index(label))
            if len(around) == len(tracked) == 2:
                tracks.tie_grids(*tracked[0], *tracked[1])
        if self.added(node):
            tracks.pin([*self.added(node), node.output])

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        dims: dict[str, dict[int, list[int]]] = {}
        for group in _groups(node):
            kept = next(value.keep for value, _ in group if value.axes is not None)
            for value, dim in group:
                if value.parameter is not None and _follows(group, node) and not every(kept):
                    dims.setdefault(value.parameter, {})[dim] = indices(kept)
        stored = {name: list(graph.tensors[name].shape) for name in dims}
        return {name: TensorSlice(dims=dict(sorted(dims[name].items())), shape=stored[name]) for name in dims}

    def refusal(self, node: Node) -> str:
        pinned = [v for group in _groups(node) if not _follows(group, node) for v, _ in group if v.axis is not None]
        return f"{node.op}: a product with a tensor that keeps its width" if pinned else ""

    def macs(self, node: Node, graph: Graph) -> tuple[int, int]:
        product: Product = node.details
        terms = [*zip(product.factors, product.labels, strict=True), (node.output, product.result)]
        sizes = {label: n for value, own in terms for label, n in zip(own, value.shape, strict=True) if n > 1}
        tracked = [(v, own, axis) for v, own in terms for axis in v.axes or () if v.shape[axis] > 1]
        before, after = sizes, sizes | {own[axis]: count_along(v, axis) for v, own, axis in tracked}
        if node.op != "einsum":
            return prod(before.values()), prod(after.values())
        # where nothing is added up, einsum multiplies entry by entry
        adds = [any(n > 1 for label, n in each.items() if label not in product.result) for each in (before, after)]
        return prod(before.values()) * adds[0], prod(after.values()) * adds[1]


def _along(value: Value, own: Labels) -> Iterator[int]:
    """Labels along which something differs: axes of a tracked value, and both dimensions of a stored matrix."""
    if value.axes is not None:
        yield from (own[axis] for axis in value.axes)
    elif value.parameter is not None and len(own) <= 2:
        yield from own


def _grids(value: Value, own: Labels, kept: set[int], graph: Graph) -> tuple[Grid, Grid]:
    """Where the factor is not known to be zero, and where it is not known to be one number."""
    if value.axes is not None:
        return ~value.zero.reshape(value.grid), ~value.fixed.reshape(value.grid)
    if value.parameter is None or 0 in value.shape:
        unknown = np.ones((1,) * len(own), bool)
        return unknown, unknown
    nonzero = np.asarray(as_array(graph.tensors[value.parameter].detach()) != 0)
    live = np.asarray(nonzero.any(tuple(dim for dim, label in enumerate(own) if label not in kept), keepdims=True))
    return live, np.zeros_like(live) if live.shape == nonzero.shape else live


def _sums(grids: list[Grid], labels: list[Labels], result: Labels) -> Grid:
    """Whether any product in the sum has all of its factors."""
    operands = [part for pair in zip(grids, labels, strict=True) for part in pair]
    return np.asarray(np.einsum(*operands, result))


def _widest(label: int, product: Product) -> int:
    grids = zip(product.live, product.labels, strict=True)
    return max((grid.shape[own.index(label)] for grid, own in grids if label in own), default=1)


def _groups(node: Node) -> Iterator[list[tuple[Value, int]]]:
    """For each label along which something may be removed: the tensors with it, and their dimensions."""
    product: Product = node.details
    terms = [*zip(product.factors, product.labels, strict=True), (node.output, product.result)]
    for label in sorted({own[axis] for value, own in terms for axis in value.axes or ()}):
        yield [(value, own.index(label)) for value, own in terms if label in own]


def _follows(group: list[tuple[Value, int]], node: Node) -> bool:
    """Whether all of these tensors can lose the same indices; stored ones are cut, unless something else uses them."""
    if node.rigid or len({value.shape[dim] for value, dim in group}) != 1:
        return False
    stored = [value.parameter for value in node.details.factors if value.parameter is not None]
    whole = len(set(stored)) != len(stored)
    return all(value.axis == dim or (value.parameter is not None and not whole) for value, dim in group)


def _is_zero(value: Value) -> bool:
    return value.axes is not None and bool(value.zero.all())


def _of_matrices(first: Any, second: Any) -> tuple[list[Value], list[Labels], Labels] | None:
    """As `torch.matmul` takes them: vectors, matrices or batches of matrices, broadcast."""
    if not isinstance(first, Value) or not isinstance(second, Value) or not first.shape or not second.shape:
        return None
    rows = [_ROW] if len(first.shape) > 1 else []
    columns = [_COLUMN] if len(second.shape) > 1 else []
    batches = [[_BATCH + n for n in range(len(value.shape) - 2)][::-1] for value in (first, second)]
    labels = [[*batches[0], *rows, _SUMMED], [*batches[1], _SUMMED, *columns]]
    return [first, second], labels, [*max(batches, key=len), *rows, *columns]


class AddedProduct(Contraction):
    """`addmm`, `baddbmm`: a product of matrices added to the first argument."""

    def spelled(self, node: Node) -> tuple[list[Value], list[Labels], Labels] | None:
        names = ("mat1", "mat2") if node.op == "addmm" else ("batch1", "batch2")
        return _of_matrices(*(argument(node, position, name) for position, name in enumerate(names, 1)))

    def added(self, node: Node) -> list[Value]:
        return [argument(node, 0, "input")]


class Einsum(Contraction):
    """`torch.einsum` with letters, an ellipsis included."""

    def spelled(self, node: Node) -> tuple[list[Value], list[Labels], Labels] | None:
        equation, *given = node.args
        factors = list(given[0]) if len(given) == 1 and isinstance(given[0], tuple) else given
        if not isinstance(equation, str) or not factors or not all(isinstance(v, Value) for v in factors):
            return None
        terms, arrow, result = equation.replace(" ", "").replace("...", ".").partition("->")
        operands = terms.split(",")
        letters = "".join(operands).replace(".", "").replace(",", "")
        if not arrow:
            result = ("." if "." in terms else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
        if len(operands) != len(factors) or any(len(set(term)) != len(term) for term in (*operands, result)):
            return None
        hidden = [len(v.shape) - len(term) + 1 for v, term in zip(factors, operands, strict=True) if "." in term]
        # numbers stay below 52, which is the limit of numpy
        order = {letter: number for number, letter in enumerate(dict.fromkeys(letters), max(hidden, default=0))}
        labels = [_numbered(term, len(v.shape), order) for term, v in zip(operands, factors, strict=True)]
        dims = len(result) - 1 + max(hidden) if "." in result else len(result)
        return factors, labels, _numbered(result, dims, order)


def _numbered(term: str, dims: int, order: dict[str, int]) -> Labels:
    """Letters as numbers; the dimensions of an ellipsis have the first numbers, counted from the last."""
    ellipsis = range(dims - len(term) + 1)[::-1]
    return [n for letter in term for n in (ellipsis if letter == "." else [order[letter]])]


OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(["bmm", "mv"], Contraction()),
    "baddbmm": AddedProduct(),
    "einsum": Einsum(),
}
