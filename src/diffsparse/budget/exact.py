"""What a network really costs with some entries dead: a copy of it is compacted, which is slow."""

import warnings

from torch import nn

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask, Numbers, cost_numbers
from diffsparse.compaction import compact
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.recording import recorded
from diffsparse.errors import SparsityWarning
from diffsparse.example import Example


class Exact:
    """Counts by compaction, once for each choice of live entries.

    Args:
        model: the gated model; it is left as it is.
        example: what it is recorded on.
        entries: of its gates.
    """

    def __init__(self, model: nn.Module, example: Example, entries: GateEntries) -> None:
        self._probe, self._example, self._entries = duplicate(model).eval(), example, entries
        self._costs: dict[bytes, Numbers] = {}
        self._keeps: dict[bytes, bool] = {}

    def cost(self, alive: Mask) -> Numbers:
        """The cost of the compact network with these entries alive."""
        key = alive.tobytes()
        if key not in self._costs:
            self._entries.impose(self._probe, alive)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SparsityWarning)
                after = compact(self._probe, self._example.inputs).after
            self._costs[key] = cost_numbers(after)
        return self._costs[key]

    def keeps_output(self, alive: Mask) -> bool:
        """Whether the output depends on the input with these entries alive."""
        key = alive.tobytes()
        if key not in self._keeps:
            self._entries.impose(self._probe, alive)
            graph, _ = recorded(materialise(self._probe), self._example)
            self._keeps[key] = not graph.constant
        return self._keeps[key]
