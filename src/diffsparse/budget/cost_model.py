"""What a network costs while some gate entries are dead: a formula that is found once and then takes microseconds."""

from collections.abc import Callable

import numpy as np
from torch import nn

from diffsparse.budget.channels import Channels, Entries
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.latency import LatencyModel, LayerTimes, agreed, fitted_weights
from diffsparse.budget.limits import COUNTED, LATENCY, METRICS, Mask, Numbers, cost_numbers
from diffsparse.budget.probing import Part, Probe
from diffsparse.example import Example
from diffsparse.measuring import measure, samples
from diffsparse.measuring.latency_table import LatencyTable

FEWEST, FEWEST_PER_BIT = 10, 3
"""Recordings with random entries dead: so many, and so many more per two bits that it takes to number the entries."""
MORE, MOST, MOST_PER_BIT = 8, 16, 4
"""If they leave a doubt, there are more, up to a number of them with so many for each bit."""
DEAD_GROUPS, FEWER = (0.4, 0.7, 0.95), 5
"""Shares of dead groups in networks that are timed, and how often fewer die if the output is constant."""


class CostModel:
    r"""Cost of the compact network as a function of the live entries.

    .. math:: c = c_0 + \sum_l A_l\, r_l\, c_l + B_l\, r_l

    with r live outputs and c live inputs of layer l, or of a product of activations, as in attention. Which output or
    input follows which entry is seen from a few recordings with random entries dead, so whatever compaction can follow
    counts: residual streams, concatenations, flattening, depthwise convolutions, heads. A channel that follows no
    single entry counts as alive.

    Args:
        model: the gated model; it is left as it is.
        example: what it is recorded on.
        entries: the gate entries that may die.
        table: of latencies, if latency counts.
    """

    def __init__(
        self, model: nn.Module, example: Example, entries: GateEntries, table: LatencyTable | None = None
    ) -> None:
        probe, everything = Probe(model, example, entries), np.ones(entries.count, bool)
        network = probe.with_alive(everything)
        self.measured = measure(network, example.inputs, latency=False)
        """The network with every entry alive."""
        self.samples = samples(network, example, self.measured.macs)
        """How many samples the MACs are for."""
        self.whole = cost_numbers(self.measured)
        """The cost with every entry alive."""
        parts = probe.parts()
        self._rows, self._columns = _channels(probe, entries)
        self._pair = np.array([part.per_pair for part in parts]).reshape(-1, 3).T
        self._row = np.array([part.per_row for part in parts]).reshape(-1, 3).T
        self._grouped = np.array([part.groups for part in parts], float)
        self._fixed = self.whole[:-1] - self._variable(everything)
        self._had_channels = self._steered_counts(everything) > 0
        self.latency = None if table is None else self._timed(probe, parts, table, entries)
        """What the network's latency is, if it counts."""

    def _widths(self, alive: Mask) -> tuple[Numbers, Numbers]:
        rows, columns = self._rows.counts(alive), self._columns.counts(alive)
        # in a grouped convolution an output reads the inputs of its own group only
        return rows, np.where(self._grouped > 1, np.maximum(columns / self._grouped, columns > 0), columns)

    def _variable(self, alive: Mask) -> Numbers:
        rows, columns = self._widths(alive)
        return np.asarray(self._pair @ (rows * columns) + self._row @ rows)

    def cost(self, alive: Mask) -> Numbers:
        """What the network costs with these entries alive."""
        return np.append(self._fixed + self._variable(alive), self.predicted_latency(alive))

    def predicted_latency(self, alive: Mask) -> float:
        """Share of the whole network's latency with these entries alive; 1 if it does not count."""
        return 1.0 if self.latency is None else self.latency.share(*self._widths(alive))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The costs that are known."""
        return COUNTED if self.latency is None else METRICS

    def _timed(self, probe: Probe, parts: list[Part], table: LatencyTable, entries: GateEntries) -> LatencyModel:
        """The latency as a function of widths: layers from the table, the rest from networks that are timed."""
        times = LayerTimes.measured([part.shape for part in parts], table)
        volumes = np.array([part.volume for part in parts], float)
        patterns = [*patterns_to_time(entries), *patterns_without_layers(entries, probe.keeps_output)]
        networks = [probe.compact_with(alive) for alive in patterns]
        terms = np.array([LatencyModel.terms(times, volumes, *self._widths(alive)) for alive in patterns])
        shares = table.network_shares(networks, probe.example)
        weights = fitted_weights(terms, np.array([share.median for share in shares]))
        return LatencyModel.from_state(agreed(LatencyModel(times, volumes, weights).state_dict()))

    def keep(self, kept: Mask) -> None:
        """Forget entries that are dead for good; the others are numbered anew."""
        self._rows.keep(kept)
        self._columns.keep(kept)

    def empty_layers(self, alive: Mask) -> set[int]:
        """Layers without a live output, and, counted on, layers without a live input.

        Channels that need no entry do not count: one may be there only for a constant that it carries.
        """
        return set(np.flatnonzero((self._steered_counts(alive) == 0) & self._had_channels).tolist())

    def _steered_counts(self, alive: Mask) -> Numbers:
        return np.concatenate([self._rows.steered_counts(alive), self._columns.steered_counts(alive)])

    def strongest_channel(self, layer: int, lasts: Numbers) -> list[int]:
        """The entries of the channel of a layer, numbered as by `empty_layers`, that lasts longest."""
        channels = self._channels_of(layer)
        if not len(channels):
            return []
        best = channels[np.argmax(np.append(lasts, np.inf)[channels].min(1))]
        return [int(entry) for entry in best if entry < len(lasts)]

    def without_layer(self, layer: int) -> Mask:
        """Entries with which all channels of a layer that need any are dead; it is numbered as by `empty_layers`."""
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
        if metric == LATENCY:
            assert self.latency is not None
            per_row, per_column = self.latency.marginals(rows, columns)
            return self._rows.spread(alive, per_row) + self._columns.spread(alive, per_column)
        pair, row = self._pair[metric], self._row[metric]
        # an output that reads a single input, as in a depthwise convolution, goes with it: the output counts
        per_column = np.where(self._grouped > 1, (columns > 1) / np.maximum(self._grouped, 1), 1.0) * pair * rows
        return self._rows.spread(alive, pair * columns + row) + self._columns.spread(alive, per_column)


def patterns_to_time(entries: GateEntries) -> list[Mask]:
    """All entries alive, then two thirds, half, a quarter and next to none."""
    (third,), (half,), least = entries.random_patterns(1), entries.random_patterns(1, dead=2), entries.one_per_group()
    quarter = half & third & entries.random_patterns(2, dead=2)[1] | least
    return [np.ones(entries.count, bool), third, half, quarter, least]


def patterns_without_layers(entries: GateEntries, keeps_output: Callable[[Mask], bool]) -> list[Mask]:
    """Patterns in which whole groups are dead, and half of the others: what a layer takes shows where it is gone.

    Groups without which the output is constant are not known; at random, fewer die until it is not.
    """
    draw, (half,), found = np.random.default_rng(0), entries.random_patterns(1, dead=2), []
    for share in DEAD_GROUPS:
        dead = draw.random(len(entries.sizes)) < share
        for _ in range(FEWER):
            alive = (half & ~dead[entries.group]) | entries.immortal
            if not dead.any() or keeps_output(alive):
                break
            dead &= draw.random(len(dead)) < 0.7
        else:
            continue
        if dead.any():
            found.append(alive)
    return found


def _channels(probe: Probe, entries: GateEntries) -> tuple[Channels, Channels]:
    """Outputs and inputs of all parts; there are probes until it is clear which entries each of them needs."""
    bits = entries.count.bit_length()
    fewest, most = FEWEST + FEWEST_PER_BIT * bits // 2, MOST + MOST_PER_BIT * bits
    patterns = entries.random_patterns(fewest, dead=2) + entries.random_patterns(most - fewest, dead=3)
    seen = [probe.masks(alive) for alive in patterns[:fewest]]
    while True:
        alive = np.stack(patterns[: len(seen)], 1)
        rows, columns = (
            Channels([np.stack(signatures, 1) for signatures in zip(*side, strict=True)], alive)
            for side in zip(*(zip(*masks, strict=True) for masks in seen), strict=True)
        )
        if len(seen) >= most or (rows.clear and columns.clear):
            return rows, columns
        seen += [probe.masks(alive) for alive in patterns[len(seen) : len(seen) + MORE]]
