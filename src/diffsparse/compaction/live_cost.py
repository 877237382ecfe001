"""What a model would cost if it were compacted now: counted from the plan, nothing is applied or compared."""

from typing import Any

from torch import nn

from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.materialise import check_model, materialise
from diffsparse.compaction.pipeline import recorded
from diffsparse.compaction.planner import make_plan
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.measuring.cost import count
from diffsparse.module_tree import lies_in


class LiveMacs:
    """Counts the MACs of the live part of a model, as often as asked while it trains.

    The MACs of the whole depend on shapes only and are counted once. Each call then records the model, whose zeros have
    changed, plans, and takes off what the plan removes.

    Args:
        model: a gated model, or any model whose scales or weights contain zeros. It is left as it is.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.

    Raises:
        SparsityError: the model does not run on the example.
    """

    def __init__(self, model: nn.Module, example_inputs: Any) -> None:
        self._model = check_model(model)
        self._example = Example.of(example_inputs)
        self.whole = count(materialise(self._model), self._example)
        """What one forward pass costs without compaction."""

    def __call__(self) -> int:
        """MACs of `compact(model, example_inputs).model` on the example, for the zeros that the model has now."""
        graph, _ = recorded(materialise(self._model).eval(), self._example)
        analysis = Analysis(graph)
        plan, _ = make_plan(analysis)
        gone = {name for name, action in plan.layers.items() if action.drops_module}
        total = self.whole.macs
        total -= sum(macs for name, macs in self.whole.macs_by_module.items() if lies_in(name, gone))
        for node in analysis.nodes:
            if node.call is None or not lies_in(node.call.name, gone):
                before, after = node.rule.macs(node, graph)
                total += after - before
        return total


def live_macs(model: nn.Module, example_inputs: Any) -> int | None:
    """MACs of the compact form of `model` on the example, without compacting it; None if it cannot be recorded.

    The count is that of the first plan that `compact` tries. It is exact unless the user's own code insists on a width,
    so that `compact` falls back to a more careful plan.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> _ = model[1].weight.data[:6].zero_()
        >>> live_macs(model, torch.randn(1, 4))
        12
    """
    try:
        return LiveMacs(model, example_inputs)()
    except SparsityError:
        return None
