"""Steering by thresholds: all of them move together, weighted by what an entry costs, until the cost is right."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from diffsparse.budget.clock import Clock
from diffsparse.budget.cost_model import CostModel
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.exact import Exact
from diffsparse.budget.landing import NEAR, refilled
from diffsparse.budget.limits import Limits, Mask, Numbers
from diffsparse.budget.search import BESIDE, fewest_deaths
from diffsparse.budget.series import find_series
from diffsparse.budget.weights import group_weights
from diffsparse.budget.worth import Worth
from diffsparse.errors import SparsityError

APART = 1e-5
"""Least distance of neighbours on the scale of beta, whose rounding error is a tenth of this."""
LAST = 1e6
"""At shifts beyond this one entries die that do not matter to the loss."""
ROUNDS = 4
"""How often a landing that is not close is tried in another way."""


class Steering:
    """Finds which entries die first and shifts thresholds so that just enough of them do.

    Args:
        entries: of the gates to steer.
        costs: of the network with these entries.
        limits: the final ones.
        exact: makes an exact count for the model as it is now; slow.
        clock: measures what a network takes; None if there is no limit for that.
        weighted: whether thresholds move by what an entry of their group costs.
    """

    def __init__(
        self,
        entries: GateEntries,
        costs: CostModel,
        limits: Limits,
        exact: Callable[[], Exact],
        clock: Clock | None,
        *,
        weighted: bool,
    ) -> None:
        self.entries, self.costs, self.limits = entries, costs, limits
        self._exact, self._clock, self._weighted = exact, clock, weighted
        self.measured_latency = 1.0
        """Share of the whole network's latency after the landing, if there is a limit for it."""
        self._margins = entries.margins()
        self.worth = Worth(entries)
        # groups of which no entry has an effect on the loss by itself, because a norm behind takes out its scale
        self._idle = np.zeros(len(entries.sizes), bool)
        self.in_series = np.zeros(len(entries.sizes), bool)
        """Groups without which the output would be constant, in networks where the loss sees no scale of such groups.

        Sizes of their gates cannot be compared, so entries die by what they are worth and cost, and are not pressed."""
        self.is_chain = False
        """Whether all groups that matter are in series."""
        self.spared = np.zeros(len(entries.sizes), bool)
        """Groups that no pressure moves: those in series, and those without any effect on the loss."""
        self._sought = False
        self.weights = self._weigh(self._margins > 0)
        """Of each group."""
        self._essential = set[int]()
        self._may_be_empty: list[set[int]] = []

    def _weigh(self, alive: Mask) -> Numbers:
        if not self._weighted:
            return np.ones(len(self.entries.sizes))
        return group_weights(self.entries, self.costs, self.limits, alive, self._idle)

    def _reweigh(self, alive: Mask) -> None:
        self._set_idle(self.worth.without_effect())
        self.weights = self._weigh(alive)

    def find_series(self) -> None:
        """Tell layers in series, once, as soon as gradients have been seen."""
        if not self._sought and self.worth.known:
            groups, is_chain = find_series(self.entries, self.worth, self._exact)
            self._set_series(groups, is_chain=is_chain)

    def _set_series(self, groups: Mask, *, is_chain: bool) -> None:
        self.in_series, self.is_chain, self._sought = groups, is_chain, True
        self.worth.watch_only(groups | self.worth.without_effect())

    def _set_idle(self, groups: Mask) -> None:
        self._idle, self.spared = groups, self.in_series | groups

    def observe(self) -> Numbers:
        """Read the gates; the cost of what lives, by the formula."""
        self._margins = self.entries.margins()
        return self.costs.cost(self._margins > 0)

    def look(self, most: Limits, fewest: Limits) -> Mask:
        """Shift thresholds if the cost is above `most`, or below `fewest`; the entries that live then.

        It goes by what `observe` has read.
        """
        alive = np.asarray(self._margins > 0)
        self._reweigh(alive)
        cost = self.costs.cost(alive)
        if most.excess(cost) > 1 or not self._is_connected(alive):
            return self._steer(lambda: self._deaths(most, int((~alive).sum())), chosen=self.in_series)
        if fewest.excess(cost) < 1:
            return self._steer(lambda: self._deaths(fewest, int((~alive).sum())), chosen=self.in_series)
        return alive

    def land(self) -> None:
        """Shift thresholds so that the cost, counted exactly, is within the limits and no entry dies in vain."""
        self.observe()
        self._reweigh(self._margins > 0)
        exact = self._exact()
        if self._clock is not None:
            self.measured_latency = self._clock.correct(exact, lambda: self._exact_deaths(exact)[0], self.limits)
        # nothing competes any more, so whatever stays alive keeps its size where the gate allows it
        self._steer(lambda: self._exact_deaths(exact), chosen=self.in_series | self.entries.choosable)
        alive = self.entries.alive()
        if self.limits.excess(exact.cost(alive)) > 1:
            raise self.limits.unreachable(self.costs.whole, self.costs.samples, exact.cost(alive))

    def check_reachable(self) -> None:
        """Raise, with the smallest cost that can be reached, if the limits are below it."""
        if self.limits.excess(self.costs.cost(self.entries.one_per_group())) <= 1:
            return
        fewest = self._deaths(self.limits)[0]
        if self.limits.excess(self.costs.cost(fewest)) > 1:
            # the formula counts some channels as alive that are not
            smallest = self._exact().cost(fewest)
            if self.limits.excess(smallest) > 1:
                raise self.limits.unreachable(self.costs.whole, self.costs.samples, smallest)

    def keep(self, model: nn.Module, kept: Mapping[str, list[int]]) -> Mask:
        """Go on with the gates of `model`, which became small; returns which groups are left.

        Args:
            model: the network now.
            kept: by the name of each gate, which of its entries are left.
        """
        left = self.entries.mask(kept)
        groups = np.asarray(np.bincount(self.entries.group, weights=left) > 0)
        self.entries, self.in_series = self.entries.in_model(model), self.in_series[groups]
        self._set_idle(self._idle[groups])
        self.weights = self.weights[groups]
        self.costs.keep(left)
        self.worth.keep(self.entries, groups, left)
        self._margins = self.entries.margins()
        return groups

    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed from the gates."""
        return {
            "weights": self.weights.tolist(),
            "worth": self.worth.state_dict(),
            "in_series": self.in_series.tolist() if self._sought else None,
            "is_chain": self.is_chain,
            "idle": self._idle.tolist(),
            "essential": sorted(self._essential),
            "may_be_empty": [sorted(proven) for proven in self._may_be_empty],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        weights = np.array(state["weights"], float)
        if weights.shape != self.weights.shape:
            raise ValueError(f"it is of {len(weights)} groups of gates, and there are {len(self.weights)}")
        self.weights = weights
        self.worth.load_state_dict(state["worth"])
        if state["in_series"] is not None:
            self._set_series(np.array(state["in_series"], bool), is_chain=bool(state["is_chain"]))
        self._set_idle(np.array(state["idle"], bool))
        self._essential = set(state["essential"])
        self._may_be_empty = [set(proven) for proven in state["may_be_empty"]]

    def _steer(self, decide: Callable[[], tuple[Mask, float]], *, chosen: Mask) -> Mask:
        """Shift thresholds as decided, or choose the entries of `chosen` groups; the entries that live then."""
        alive, shift = decide()
        if self._lift(alive, chosen):
            alive, shift = decide()
        if not self._shift(alive, shift, chosen):
            # no threshold can lie between shares that are equal up to rounding
            self.entries.separate(APART)
            self._margins = self.entries.margins()
            alive, shift = decide()
            self._shift(alive, shift, chosen)
        self._choose(alive, chosen)
        return alive

    def _lift(self, alive: Mask, chosen: Mask) -> bool:
        """Raise entries that must live above those of their group that die before them; whether there were any."""
        _, below = self._extremes(np.where(alive, -np.inf, self._margins))
        below[chosen] = -np.inf
        # what is exactly zero cannot be raised
        margins = np.where(np.isfinite(self._margins), self._margins, np.inf)
        missing = np.where(alive, below[self.entries.group] - margins, -np.inf)
        if not (missing > 0).any():
            return False
        self.entries.scale(np.where(missing > 0, missing + BESIDE, 0.0))
        self._margins = self.entries.margins()
        return True

    def _choose(self, alive: Mask, chosen: Mask) -> None:
        """Let just these entries of the chosen groups live, whatever their size."""
        wanted = np.where(chosen[self.entries.group], alive, self._margins > 0)
        if (wanted != (self._margins > 0)).any():
            self.entries.let_live(wanted)
            self._margins = self.entries.margins()

    def _shift(self, alive: Mask, shift: float, chosen: Mask) -> bool:
        """Shift thresholds by a common amount times their weights, a little less or more where an entry is very close.

        Those of chosen groups stay. No threshold moves on beyond all entries of its group: it would only be far from
        them later. Returns False, and shifts nothing, if some threshold finds no room between two entries.
        """
        lowest, highest = self._extremes(self._margins)
        _, below = self._extremes(np.where(alive, -np.inf, self._margins))
        above, _ = self._extremes(np.where(alive, self._margins, np.inf))
        room = np.where(chosen, np.inf, above - below)
        if (room < APART / 2).any():
            return False
        distance = np.minimum(room / 2, APART / 2)
        wanted = np.clip(shift * self.weights, np.minimum(lowest - BESIDE, 0), np.maximum(highest + BESIDE, 0))
        wanted[self._idle] = 0.0
        still = chosen | (self.entries.sizes == 1)
        by = np.where(still, 0.0, np.clip(wanted, below + distance, above - distance))
        self.entries.shift(by)
        self._margins = self._margins - by[self.entries.group]
        return True

    def _extremes(self, by_entry: Numbers) -> tuple[Numbers, Numbers]:
        """The smallest and the largest number of each group."""
        starts = self.entries.starts
        return np.minimum.reduceat(by_entry, starts), np.maximum.reduceat(by_entry, starts)

    def _dies_at(self) -> Numbers:
        """At which common shift each entry dies; infinite for those without which the output would be constant."""
        weights = self.weights[self.entries.group]
        dies_at, lives = self._margins / weights, self._margins > 0
        idle, own = (groups[self.entries.group] & lives for groups in (self._idle, self.in_series))
        # what does not matter by itself dies with another entry of its channel
        dies_at[idle] += LAST
        if own.any():
            # in the mean as soon as entries of other layers
            others, value = dies_at[lives & ~idle & ~own], self.worth.by_entry()[own] / weights[own]
            others = others[np.isfinite(others)]
            dies_at[own] = value * ((others.mean() if len(others) else 1.0) / (value.mean() or 1.0))
        for layer in self._essential:
            dies_at[self.costs.strongest_channel(layer, dies_at)] = np.inf
        return dies_at

    def _deaths(self, limits: Limits, guess: int | None = None) -> tuple[Mask, float]:
        """The entries that live if as few die as the formula needs for `limits`, and the common shift that does it."""
        while True:
            dies_at = self._dies_at()
            alive, shift = fewest_deaths(dies_at, lambda mask: limits.excess(self.costs.cost(mask)) <= 1, guess)
            if self._is_connected(alive):
                return alive, shift
            self._protect_output(alive, self._exact())

    def _exact_deaths(self, exact: Exact) -> tuple[Mask, float]:
        """The same for the final limits, counted exactly; the formula counts some channels as alive that are not."""
        guess = int((~self._deaths(self.limits)[0]).sum())
        fits = lambda mask: self.limits.excess(exact.cost(mask)) <= 1  # noqa: E731
        best: tuple[float, Mask, float] | None = None
        spared = np.zeros(self.entries.count, bool)
        for _ in range(ROUNDS):
            alive, shift = fewest_deaths(np.where(spared, np.inf, self._dies_at()), fits, guess)
            while not exact.keeps_output(alive):
                self._protect_output(alive, exact)
                alive, shift = fewest_deaths(np.where(spared, np.inf, self._dies_at()), fits, guess)
            alive = refilled(alive, self._dies_at(), self.entries, self.limits, (self.costs.cost, exact.cost))
            reached = self.limits.excess(exact.cost(alive))
            if best is None or best[0] < reached <= 1:
                best = reached, alive, shift
            if reached >= NEAR or alive.all():
                break
            # the last death saved too much: without it, smaller ones may fill the limits
            dies_at = self._dies_at()
            last = np.argmax(np.where(alive, -np.inf, dies_at))
            spared |= (self.entries.group == self.entries.group[last]) & (dies_at > dies_at[last])
            spared[last] = True
        assert best is not None
        return best[1:]

    def _is_connected(self, alive: Mask) -> bool:
        """Whether the output still depends on the input; a recording tells, unless as many layers were empty before."""
        empty = self.costs.empty_layers(alive)
        if not empty or any(empty <= proven for proven in self._may_be_empty):
            return True
        connected = self._exact().keeps_output(alive)
        if connected:
            self._may_be_empty = [proven for proven in self._may_be_empty if not proven <= empty] + [empty]
        return connected

    def _protect_output(self, alive: Mask, exact: Exact) -> None:
        """With these entries the output is constant: find the layers that must keep a channel."""
        empty = self.costs.empty_layers(alive)
        new = empty.difference(*self._may_be_empty) or empty
        guilty = {layer for layer in new if not exact.keeps_output(self.costs.without_layer(layer))}
        more = (guilty or new) - self._essential
        if not more:
            raise SparsityError("the output of the network no longer depends on its input, whichever entries live")
        self._essential |= more
