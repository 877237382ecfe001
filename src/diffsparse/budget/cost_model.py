"""What a network costs while some gate entries are dead: a formula that is found once and then takes microseconds."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from diffsparse.budget.entries import GateEntries
from diffsparse.compaction import compact
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.pipeline import recorded
from diffsparse.compaction.rules.layer import Layer
from diffsparse.example import Example
from diffsparse.measuring import measure

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]

METRICS = ("macs", "params", "bytes")
SIDES = ("rows", "columns")
PROBES = 64
"""Recordings with random halves of all entries dead; two channels that live and die alike in all of them are one."""


class _Side:
    """The outputs, or the inputs, of all layers: which entries each of them needs to live.

    Args:
        signatures: per layer, for each channel, in which probes it was there.
        patterns: (entries, probes), which entries lived in which probe.
    """

    def __init__(self, signatures: list[Mask], patterns: Mask) -> None:
        self._entries, self._layers = len(patterns), len(signatures)
        owners = _Owners(patterns)
        found = [[owners.of(signature) for signature in layer if signature.any()] for layer in signatures]
        self.layers = np.repeat(np.arange(self._layers), [len(layer) for layer in found])
        """Layer of each channel."""
        channels = [entries for layer in found for entries in layer]
        widest = max(map(len, channels), default=0) or 1
        always = self._entries
        self.entries = np.array([[*e, *[always] * (widest - len(e))] for e in channels], np.int64).reshape(-1, widest)
        """Entries that each channel needs; one past the last stands for none."""

    def _alive(self, alive: Mask) -> Mask:
        return np.append(alive, True)[self.entries]

    def counts(self, alive: Mask) -> Numbers:
        """Live channels of each layer."""
        lives = self._alive(alive).all(1).astype(float)
        return np.asarray(np.bincount(self.layers, weights=lives, minlength=self._layers), float)

    def spread(self, alive: Mask, by_layer: Numbers) -> Numbers:
        """What each entry decides on, if a channel of a layer is worth `by_layer`: channels that need nothing else."""
        lives = self._alive(alive)
        others = lives.sum(1, keepdims=True) - lives == lives.shape[1] - 1
        worth = np.where(others, by_layer[self.layers][:, None], 0.0)
        total = np.bincount(self.entries.ravel(), weights=worth.ravel(), minlength=self._entries + 1)
        return np.asarray(total[: self._entries], float)


class _Owners:
    """Finds the entries that a channel needs from the probes in which it was there."""

    def __init__(self, patterns: Mask) -> None:
        self._patterns = patterns
        self._single: dict[bytes, tuple[int, ...]] = {p.tobytes(): (entry,) for entry, p in enumerate(patterns)}

    def of(self, signature: Mask) -> tuple[int, ...]:
        """The entries; none for a channel that is always there, or that follows no entries together."""
        key = signature.tobytes()
        if key not in self._single:
            together = np.flatnonzero(~(signature & ~self._patterns).any(1))
            exact = len(together) and np.array_equal(self._patterns[together].all(0), signature)
            self._single[key] = tuple(together.tolist()) if exact and not signature.all() else ()
        return self._single[key]


class CostModel:
    r"""Cost of the compact network as a function of the live entries.

    .. math:: c = c_0 + \sum_l A_l\, r_l\, c_l + B_l\, r_l

    with r live outputs and c live inputs of layer l. Which output or input follows which entry is seen from a few
    recordings with random entries dead, so whatever compaction can follow counts: residual streams, concatenations,
    flattening, depthwise convolutions. A channel that follows no single entry counts as alive.

    Args:
        model: the gated model; it is left as it is.
        example: what it is recorded on.
        entries: the gate entries that may die.
    """

    def __init__(self, model: nn.Module, example: Example, entries: GateEntries) -> None:
        self._model, self._example, self._gates = model, example, entries
        probe = copy.deepcopy(model).eval()
        patterns = entries.random_halves(PROBES)
        seen = []
        for alive in patterns:
            entries.impose(probe, alive)
            seen.append(_layer_masks(probe, example))
        entries.impose(probe, np.ones(entries.count, bool))
        whole = materialise(probe)
        cost = measure(whole, example.inputs, latency=False)
        self.whole = np.array([cost.macs, cost.params, cost.bytes], float)
        """MACs, parameters and bytes with every entry alive."""
        layers = seen[0]
        matrix = np.stack(patterns, 1)
        sides = (
            [np.stack([getattr(masks[i], side) for masks in seen], 1) for i in range(len(layers))] for side in SIDES
        )
        self._rows, self._columns = (_Side(signatures, matrix) for signatures in sides)
        self._pair = np.array([layer.per_pair for layer in layers]).reshape(-1, 3).T
        self._row = np.array([layer.per_row for layer in layers]).reshape(-1, 3).T
        self._grouped = np.array([layer.grouped for layer in layers], float)
        self._fixed = self.whole - self._variable(np.ones(entries.count, bool))

    def _widths(self, alive: Mask) -> tuple[Numbers, Numbers]:
        rows, columns = self._rows.counts(alive), self._columns.counts(alive)
        # in a grouped convolution an output reads the inputs of its own group only
        return rows, np.where(self._grouped > 1, np.maximum(columns / self._grouped, columns > 0), columns)

    def _variable(self, alive: Mask) -> Numbers:
        rows, columns = self._widths(alive)
        return np.asarray(self._pair @ (rows * columns) + self._row @ rows)

    def cost(self, alive: Mask) -> Numbers:
        """MACs, parameters and bytes with these entries alive."""
        return self._fixed + self._variable(alive)

    def exact(self) -> Callable[[Mask], Numbers]:
        """A function that compacts a copy of the model with these entries alive and counts: slow and exact."""
        probe = copy.deepcopy(self._model).eval()

        def count(alive: Mask) -> Numbers:
            self._gates.impose(probe, alive)
            after = compact(probe, self._example.inputs).after
            return np.array([after.macs, after.params, after.bytes], float)

        return count

    def keeps_output(self, alive: Mask) -> bool:
        """Whether the output depends on the input with these entries alive."""
        probe = copy.deepcopy(self._model).eval()
        self._gates.impose(probe, alive)
        graph, _ = recorded(materialise(probe), self._example)
        return not all(value.known or (value.axis is not None and value.fixed.all()) for value in graph.results)

    def marginal(self, alive: Mask, metric: int) -> Numbers:
        """What one more or one less of each entry changes, at the widths of now."""
        rows, columns = self._widths(alive)
        pair, row = self._pair[metric], self._row[metric]
        per_column = pair * rows / np.where(self._grouped > 1, self._grouped, 1.0)
        return self._rows.spread(alive, pair * columns + row) + self._columns.spread(alive, per_column)


@dataclass(frozen=True)
class _LayerMasks:
    rows: Mask
    columns: Mask
    per_pair: Numbers
    """MACs, parameters and bytes per pair of output and input."""
    per_row: Numbers
    grouped: int


def _layer_masks(probe: nn.Module, example: Example) -> list[_LayerMasks]:
    model = materialise(probe).eval()
    graph, _ = recorded(model, example)
    analysis = Analysis(graph)
    parameters = {name for name, tensor in graph.tensors.items() if isinstance(tensor, nn.Parameter)}
    return [_describe(node, layer, graph, parameters) for node, layer in analysis.layers]


def _describe(node: Node, layer: Layer, graph: Graph, parameters: set[str]) -> _LayerMasks:
    pair, row = np.zeros(3), np.zeros(3)
    for role, name in layer.tensors.items():
        tensor = graph.tensors[name]
        if role == "weight" and layer.mixes:
            size = tensor[0, 0].numel()
            pairs = sum(height * width for height, width in layer.block_sizes)
            macs = node.rule.macs(node, graph)[1] / max(pairs, 1)
            pair += (macs, size * (name in parameters), size * tensor.element_size())
        elif tensor.dim():
            row += (0, name in parameters, tensor.element_size())
    columns = layer.columns if layer.mixes else np.zeros(0, bool)
    return _LayerMasks(layer.rows.copy(), columns.copy(), pair, row, layer.groups)
