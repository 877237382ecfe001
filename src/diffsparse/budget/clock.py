"""What a network really takes, beside the whole one."""

import os
import warnings
from collections.abc import Callable

from torch import nn

from diffsparse.budget.exact import Exact
from diffsparse.budget.latency import agreed
from diffsparse.budget.limits import Limits, Mask
from diffsparse.compaction.materialise import materialise
from diffsparse.errors import SparsityError, SparsityWarning, require_number
from diffsparse.example import Example
from diffsparse.measuring.latency_table import LatencyTable

CLOSE, ROUNDS = 0.96, 8
"""A measured latency this close to its limit is not improved, and any other one by no more than so many trims."""


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

    def __call__(self, network: nn.Module) -> float:
        """The time of a network as a share of the whole one's; the same in all processes."""
        whole, own = self.table.network_seconds([self._whole, network.eval()], self._example)
        return float(agreed(own / whole))

    def correct(self, exact: Exact, choose: Callable[[], Mask], limits: Limits) -> float:
        """Correct the prediction of `exact` until what `choose` chooses by it really is within the limit.

        Returns the latency of that, which was measured.
        """
        held: list[tuple[float, float]] = []
        share, limit = 1.0, limits.latency
        for _ in range(ROUNDS):
            alive = choose()
            share = self(exact.network(alive))
            if share <= limit:
                held.append((share, exact.slower))
                if share >= CLOSE * limit or alive.all():
                    break
            seen = share / exact.predicted(alive)
            # a little more than what was seen, so that what is just too slow does not come again
            exact.slower = seen if share <= limit else max(seen, 1.01 * exact.slower)
        if held:
            share, exact.slower = max(held)
            return share
        words = f"the network still takes {share:.1%} of the whole one's time after {ROUNDS} trims"
        warnings.warn(f"{words}, more than the {limit:.1%} asked for", SparsityWarning, stacklevel=2)
        return share
