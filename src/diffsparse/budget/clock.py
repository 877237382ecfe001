"""What a network really takes, beside the whole one."""

import os

from torch import nn

from diffsparse.budget.latency import agreed
from diffsparse.compaction.materialise import materialise
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.measuring.latency_table import LatencyTable


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
        cls, model: nn.Module, example: Example, table: LatencyTable | str | os.PathLike[str] | None = None
    ) -> "Clock":
        """For a gated model, which is left as it is; `table` may be the file that holds it."""
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
