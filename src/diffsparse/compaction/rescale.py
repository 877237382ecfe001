"""Scores of attention whose scale the code computes from the width of a head: the layer in front makes up for it.

With `q.shape[-1] ** -0.5` in the forward pass, narrower heads get another scale. So do those of
`scaled_dot_product_attention` if it is given none. Queries are then multiplied by as much as is missing, in the weights
of the layer that makes them.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.doubt import Places
from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import Mask
from diffsparse.compaction.numbers_used import Numbers
from diffsparse.compaction.rules.attention import Attention
from diffsparse.compaction.rules.base import argument, numbers_in, takes_number
from diffsparse.compaction.rules.contraction import Contraction
from diffsparse.compaction.rules.dimensions import count_along
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.movement import Movement
from diffsparse.errors import SparsityError

_CLOSE = 1e-9


class ScoreScales:
    """What has to be done for scores to be as before, in one analysis whose heads become narrower.

    Args:
        analysis: the latest one of its graph; what queries are multiplied by is noted in its layers.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._graph = analysis.graph
        self._makers = {id(value): node for node in analysis.nodes for value in node.outputs}
        self._shares = {width / before for node in analysis.nodes for before, width in _narrower(node)}
        self.numbers: Numbers | None = None
        """The Python numbers that the compact model uses, if they are others than those of the original."""
        for node in analysis.nodes:
            # the fused function asks for the width by itself
            if isinstance(node.rule, Attention) and argument(node, 6, "scale") is None:
                for before, width in _narrower(node):
                    self._multiply(node.details[0], math.sqrt(width / before))

    def make_up_for(self, compact: Graph, known: Numbers) -> None:
        """Take the numbers that a recording of the compact model shows, and multiply queries by what is missing."""
        places, others = Places(), Places()
        ran = {others.of(node): node for node in compact.nodes}
        self.numbers = known.copy()
        for node in self._graph.nodes:
            twin = ran.get(places.of(node))
            if twin is None or not takes_number(node.op, node.args, node.kwargs):
                continue
            before, after = (numbers_in(each.args, each.kwargs) for each in (node, twin))
            if before != after and len(before) == len(after) == 1:
                self.numbers.subtract([(node.op, *before)])
                self.numbers.update([(node.op, *after)])
                self._multiply(node.inputs[0], self._missing(node, before[0], after[0]))

    def _missing(self, node: Node, before: float, after: float) -> float:
        """By how much less the compact model multiplies; raises if that does not follow from widths of heads alone."""
        if node.op not in {"mul", "div"} or len(node.inputs) != 1 or node.args[:1] != (node.inputs[0],):
            raise SparsityError(f"{node.op} is given a number that depends on the width of heads")
        missing = before / after if node.op == "mul" else after / before
        powers = [math.log(missing) / math.log(share) for share in self._shares] if missing > 0 else []
        if not any(abs(4 * power - round(4 * power)) < _CLOSE for power in powers):
            raise SparsityError(f"{node.op} is given {after:.6g} in place of {before:.6g}")
        return missing

    def _multiply(self, value: Value, factor: float) -> None:
        """Let the layer that makes `value` give `factor` times as much."""
        for layer, channels in self._sources(value):
            if layer.free and not layer.borrows and not layer.twins and layer.has("weight"):
                scale = np.ones(layer.output.channels) if layer.scale is None else layer.scale
                layer.scale = np.where(channels, factor * scale, scale)
                return
        raise SparsityError("the code computes the scale of its scores from the width of heads")

    def _sources(self, value: Value) -> Iterator[tuple[Layer, Mask]]:
        """Layers that a multiple of `value` can come from, and which of their outputs it is made of."""
        channels = np.ones(value.channels, bool)
        while (node := self._makers.get(id(value))) is not None and value.axes is not None:
            if node.layer is not None:
                yield node.layer, channels
                return
            if isinstance(node.rule, Contraction | Attention) and node.details is not None:
                factors = node.details[:2] if isinstance(node.rule, Attention) else node.details.factors
                for factor in factors:
                    yield from self._sources(factor)
                return
            channels, value = _before(node, value, channels)


def _before(node: Node, value: Value, channels: Mask) -> tuple[Mask, Any]:
    """What an operator moves or multiplies by a number, with these channels; None for any other operator."""
    if isinstance(node.rule, Movement) and value.taken_from is not None:
        base, numbers = value.taken_from
        taken = np.zeros(base.channels, bool)
        taken[numbers[channels]] = True
        return taken, base
    by_number = node.op in {"mul", "div"} and len(node.inputs) == 1
    same = node.inputs[0] if by_number else value.same_as
    return channels, same if same is not None and same.channels == value.channels else None


def _narrower(node: Node) -> Iterator[tuple[int, int]]:
    """The width of heads in a product of activations, before and after, if it changes."""
    if isinstance(node.rule, Contraction):
        value = node.details.factors[0]
        axes = {axis for axis in value.axes or () if node.details.labels[0][axis] not in node.details.result}
    elif isinstance(node.rule, Attention):
        value = node.details[0]
        axes = {*(value.axes or ())} & {len(value.shape) - 1}
    else:
        return
    for axis in axes:
        if (width := count_along(value, axis)) != value.shape[axis]:
            yield value.shape[axis], width
