"""What a network really costs with some entries dead: a copy of it is compacted, which is slow."""

from collections.abc import Callable

import numpy as np
from torch import nn

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import COUNTED, Mask, Numbers, cost_numbers
from diffsparse.budget.probing import quietly_compacted
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.verify import default_tolerance, difference
from diffsparse.errors import SparsityError
from diffsparse.example import Example, map_tensors
from diffsparse.undisturbed import undisturbed


class Exact:
    """Counts by compaction, once for each choice of live entries.

    Args:
        model: the gated model; it is left as it is.
        example: what it is recorded on.
        entries: of its gates.
        predicted: the share of the whole network's latency, if that counts.
        counts: whether any other cost does; if not, they are 0 here.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Example,
        entries: GateEntries,
        predicted: Callable[[Mask], float] = lambda alive: 1.0,
        *,
        counts: bool = True,
    ) -> None:
        self._probe, self._example, self._entries = duplicate(model).eval(), example, entries
        self.predicted, self._counts = predicted, counts
        self.slower = 1.0
        """What networks near the limit really take, as a multiple of the prediction."""
        self._costs: dict[bytes, Numbers] = {}
        self._keeps: dict[bytes, bool] = {}

    def network(self, alive: Mask) -> nn.Module:
        """The compact network with these entries alive."""
        self._entries.impose(self._probe, alive)
        return quietly_compacted(self._probe, self._example).model

    def cost(self, alive: Mask) -> Numbers:
        """The cost of the compact network with these entries alive; its latency is a prediction."""
        latency = self.slower * self.predicted(alive)
        if not self._counts:
            return np.array([0.0] * len(COUNTED) + [latency])
        key = alive.tobytes()
        if key not in self._costs:
            self._entries.impose(self._probe, alive)
            self._costs[key] = cost_numbers(quietly_compacted(self._probe, self._example).after)
        return np.append(self._costs[key][:-1], latency)

    def keeps_output(self, alive: Mask) -> bool:
        """Whether the output depends on the input with these entries alive."""
        key = alive.tobytes()
        if key not in self._keeps:
            self._entries.impose(self._probe, alive)
            graph, _ = recorded(materialise(self._probe), self._example)
            self._keeps[key] = not graph.constant
        return self._keeps[key]

    def responds(self, alive: Mask) -> bool:
        """Whether the output is another one for other inputs; by trying, where there are floating-point inputs.

        True as well if the network does not take other numbers, or the shape of its output depends on them.
        """
        if not any(tensor.is_floating_point() for tensor in self._example.tensors):
            return self.keeps_output(alive)
        change = lambda tensor: 0.5 - 2 * tensor if tensor.is_floating_point() else tensor  # noqa: E731
        changed = map_tensors(change, self._example.inputs)
        self._entries.impose(self._probe, alive)
        try:
            with undisturbed(self._probe, device=self._example.device):
                first, second = (example.run(self._probe) for example in (self._example, Example.of(changed)))
            return difference(first, second) > default_tolerance(self._probe)
        except SparsityError:
            return True
