"""What a network costs while some gate entries are dead: a formula that is found once and then takes microseconds."""

from dataclasses import dataclass

import numpy as np
from torch import nn

from diffsparse.budget.channels import Channels, Entries
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask, Numbers, cost_numbers
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.rules.layer import Layer
from diffsparse.example import Example
from diffsparse.measuring import measure

SIDES = ("rows", "columns")
PROBES, PER_BIT = 16, 4
"""Recordings with random entries dead: so many, and some more for each bit that it takes to number the entries."""


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
        probe = duplicate(model).eval()
        patterns = entries.random_patterns(PROBES + PER_BIT * entries.count.bit_length())
        seen = []
        for alive in patterns:
            entries.impose(probe, alive)
            seen.append(_layer_masks(probe, example))
        entries.impose(probe, np.ones(entries.count, bool))
        whole = materialise(probe)
        self.measured = measure(whole, example.inputs, latency=False)
        """The network with every entry alive."""
        self.whole = cost_numbers(self.measured)
        """MACs, parameters and bytes with every entry alive."""
        layers = seen[0]
        matrix = np.stack(patterns, 1)
        sides = (
            [np.stack([getattr(masks[i], side) for masks in seen], 1) for i in range(len(layers))] for side in SIDES
        )
        self._rows, self._columns = (Channels(signatures, matrix) for signatures in sides)
        self._pair = np.array([layer.per_pair for layer in layers]).reshape(-1, 3).T
        self._row = np.array([layer.per_row for layer in layers]).reshape(-1, 3).T
        self._grouped = np.array([layer.grouped for layer in layers], float)
        everything = np.ones(entries.count, bool)
        self._fixed = self.whole - self._variable(everything)
        counts = [self._rows.counts(everything), self._columns.counts(everything)]
        self._had_channels = np.concatenate(counts) > 0

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

    def keep(self, kept: Mask) -> None:
        """Forget entries that are dead for good; the others are numbered anew."""
        self._rows.keep(kept)
        self._columns.keep(kept)

    def empty_layers(self, alive: Mask) -> set[int]:
        """Layers without a live output, and, counted on, layers without a live input."""
        counts = np.concatenate([self._rows.counts(alive), self._columns.counts(alive)])
        return set(np.flatnonzero((counts == 0) & self._had_channels).tolist())

    def strongest_channel(self, layer: int, lasts: Numbers) -> list[int]:
        """The entries of the channel of a layer, numbered as by `empty_layers`, that lasts longest."""
        channels = self._channels_of(layer)
        best = channels[np.argmax(np.append(lasts, np.inf)[channels].min(1))]
        return [int(entry) for entry in best if entry < len(lasts)]

    def without_layer(self, layer: int) -> Mask:
        """Entries with which all channels of a layer, numbered as by `empty_layers`, are dead."""
        channels, count = self._channels_of(layer), self._rows.entry_count
        alive = np.ones(count + 1, bool)
        alive[channels] = False
        return alive[:count]

    def _channels_of(self, layer: int) -> Entries:
        layers = len(self._grouped)
        return self._rows.of_layer(layer) if layer < layers else self._columns.of_layer(layer - layers)

    def marginal(self, alive: Mask, metric: int) -> Numbers:
        """What one more or one less of each entry changes, at the widths of now."""
        rows, columns = self._widths(alive)
        pair, row = self._pair[metric], self._row[metric]
        # an output that reads a single input, as in a depthwise convolution, goes with it: the output counts
        per_column = np.where(self._grouped > 1, (columns > 1) / np.maximum(self._grouped, 1), 1.0) * pair * rows
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
    for role in (*layer.tensors, *layer.computed):
        tensor, counts = layer.held(role, graph), role in layer.computed or layer.tensors[role] in parameters
        if role == "weight" and layer.mixes:
            size = tensor[0, 0].numel()
            pairs = sum(height * width for height, width in layer.block_sizes)
            macs = node.rule.macs(node, graph)[1] / max(pairs, 1)
            pair += (macs, size * counts, size * tensor.element_size())
        elif tensor.dim():
            row += (0, counts, tensor.element_size())
    columns = layer.columns if layer.mixes else np.zeros(0, bool)
    return _LayerMasks(layer.rows.copy(), columns.copy(), pair, row, layer.groups)
