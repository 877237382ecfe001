"""What a network really takes, beside the whole one."""

import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from diffsparse.budget.exact import Exact
from diffsparse.budget.latency import agreed
from diffsparse.budget.limits import Limits, Mask
from diffsparse.compaction.materialise import materialise
from diffsparse.errors import SparsityError, SparsityWarning, require_number
from diffsparse.example import Example
from diffsparse.measuring.latency import Share
from diffsparse.measuring.latency_table import LatencyTable

CLOSE, ROUNDS = 0.96, 8
"""A measured latency this close to its limit is not improved, and any other one by no more than so many trims."""
SURPRISE, SURE, LONGER = 0.15, 0.03, 4.0
"""A share that is so far from what was expected, or no surer than this, is measured again, so much longer."""
STEP, FLOOR, LOWEST = 1.3, 0.6, 0.3
"""Predictions are corrected by the first factor at most in one trim. Nothing is cut to less than the second share of
the limit, as predicted, unless the measurement is sure, and never to less than the third."""
HELPS, SAME = 0.9, 0.97
"""A trim that is predicted to take less than the first share of the last one, but surely takes more than the second
share, does not help."""
SLACK = 0.02
"""A network that held the limit, and is above it by no more than this when it is timed once more, is accepted."""


@dataclass(frozen=True)
class Trim:
    """One try at the landing."""

    share: Share
    """Of the whole network's time, measured."""
    predicted: float
    """The same by the table, as it was at first."""
    slower: float
    """How the prediction was corrected when this network was chosen."""


class Clock:
    """Times networks in turns with the whole one.

    Args:
        whole: the network as it was, without gates.
        example: what they run on.
        table: where times come from.
    """

    def __init__(self, whole: nn.Module, example: Example, table: LatencyTable) -> None:
        self._whole, self._example, self.table = whole, example, table

    @classmethod
    def of(
        cls, model: nn.Module, example: Example, share: float, table: LatencyTable | str | os.PathLike[str] | None
    ) -> "Clock":
        """For a gated model that shall come to this share; `table` may be the file that holds it."""
        require_number("latency, a share of the whole network's,", share, above=0, high=1)
        if table is not None and not isinstance(table, LatencyTable | str | os.PathLike):
            raise SparsityError(f"table must be a LatencyTable or the path of its file, got {table!r:.50}")
        if example.device.type == "meta":
            raise SparsityError("nothing runs on the meta device, so latency cannot be a budget there")
        known = table if isinstance(table, LatencyTable) else LatencyTable(table, device=example.device)
        return cls(materialise(model).eval(), example, known)

    def __call__(self, network: nn.Module, longer: float = 1.0) -> Share:
        """The time of a network as a share of the whole one's; the same in all processes."""
        share: Share = agreed(self.table.network_shares([self._whole, network.eval()], self._example, longer)[1])
        return share

    def checked(self, network: nn.Module, expected: float) -> Share:
        """The same; what is not expected is measured a second time, and is no surer than both agree."""
        first = self(network)
        if first.error <= SURE and abs(first.median / expected - 1) <= SURPRISE:
            return first
        second = self(network, LONGER)
        apart = abs(first.median - second.median) / second.median
        return replace(second, error=max(second.error, apart))

    def correct(self, exact: Exact, choose: Callable[[], Mask], limits: Limits) -> float:
        """Correct the prediction of `exact` until what `choose` chooses by it really is within the limit.

        Returns the latency of that, which was measured. One bad measurement does not decide: see the numbers above.
        """
        landing = _Landing(self, exact, choose, limits.latency)
        for _ in range(ROUNDS):
            if not landing.trim():
                break
        return landing.settle()


class _Landing:
    """Trims a network until it takes as long as it may."""

    def __init__(self, clock: Clock, exact: Exact, choose: Callable[[], Mask], limit: float) -> None:
        self._clock, self._exact, self._choose, self._limit = clock, exact, choose, limit
        self._tried: list[Trim] = []
        self._began, self._why = time.perf_counter(), f"{ROUNDS} trims were not enough"
        self._final: Share | None = None

    def trim(self) -> bool:
        """Choose a network and time it; whether it is worth trying another one."""
        exact, limit = self._exact, self._limit
        alive = self._choose()
        predicted = exact.predicted(alive)
        if self._tried and exact.slower * predicted > limit * (1 + 1e-9):
            self._why = "no smaller network was found"
            return False
        network = exact.network(alive)
        share = self._clock.checked(network, exact.slower * predicted)
        if share.median <= limit and (share.median * (1 + share.error) >= CLOSE * limit or alive.all()):
            self._final = self._clock(network, LONGER)
            if self._final.median <= (1 + SLACK) * limit:
                self._tried.append(Trim(self._final, predicted, exact.slower))
                self._say()
                return False
            share, self._final = self._final, None
        self._tried.append(Trim(share, predicted, exact.slower))
        self._say()
        return self._correct()

    def _correct(self) -> bool:
        """Correct the prediction by what was seen last; whether another network may be chosen by it."""
        now, before = self._tried[-1], self._tried[-2] if len(self._tried) > 1 else None
        seen = now.share.median / now.predicted
        if now.share.median > self._limit:
            # a little more than what was seen, so that what is just too slow does not come again
            seen = max(seen, 1.01 * now.slower)
            if before is not None and now.predicted < HELPS * before.predicted and _does_not_help(before, now):
                self._why = "a smaller network was not faster"
                return False
        wanted = min(max(seen, now.slower / STEP), now.slower * STEP)
        if wanted > 1 / (LOWEST if now.share.error <= SURE else FLOOR):
            self._why = "what was measured is too far from what was predicted"
            return False
        self._exact.slower = wanted
        return True

    def settle(self) -> float:
        """The latency of the network that is chosen in the end; what goes wrong is said."""
        if self._final is not None:
            return self._final.median
        held = [trim for trim in self._tried if trim.share.median <= self._limit]
        fastest = min(trim.share.median for trim in self._tried)
        near = [trim for trim in self._tried if trim.share.median <= fastest / SAME]
        # where nothing holds, it should at least not be smaller than is of use
        chosen = max(held, key=lambda trim: trim.share.median) if held else min(near, key=lambda trim: trim.slower)
        self._exact.slower = chosen.slower
        share = self._clock(self._exact.network(self._choose()), LONGER)
        if share.median > (1 + SLACK) * self._limit:
            warnings.warn(self._words(replace(chosen, share=share)), SparsityWarning, stacklevel=2)
        return share.median

    def _words(self, trim: Trim) -> str:
        took = time.perf_counter() - self._began
        return (
            f"the network still takes {trim.share.median:.1%} of the whole one's time, more than the {self._limit:.1%} "
            f"asked for: {self._why}. It was timed in {trim.share.rounds} rounds, which is sure up to "
            f"{trim.share.error:.1%}, and predicted at {trim.predicted:.1%}; {len(self._tried)} networks were tried in "
            f"{took:.0f} s. If the machine is busy, check with ds.measure when it is not, or make the budget anew"
        )

    def _say(self) -> None:
        if sys.stderr.isatty():
            took, number = time.perf_counter() - self._began, len(self._tried)
            words = f"landing, network {number} of at most {ROUNDS}: {self._tried[-1].share}, after {took:.0f} s"
            print(f"{words}; the limit is {self._limit:.1%}", file=sys.stderr, flush=True)


def _does_not_help(before: Trim, now: Trim) -> bool:
    sure = max(before.share.error, now.share.error) <= SURE
    return sure and now.share.median > SAME * before.share.median
