"""What the live part of a network costs and how wide it is, without compacting it."""

from typing import Any

from torch import nn

from diffsparse.compaction.actions import Slice
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.attempts import has_heads
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.materialise import check_model, materialise
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.planner import make_plan
from diffsparse.compaction.recording import recorded
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.measuring import count
from diffsparse.module_tree import layer_widths, lies_in


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
        graph, analysis, plan = _planned(self._model, self._example)
        gone = {name for name, action in plan.layers.items() if action.drops_module}
        # of a module whose weights are baked, what computed them goes
        gone_with = {*gone, *(f"{name}.{child}" for name in plan.baked for child in graph.modules[name]._modules)}
        total = self.whole.macs - sum(n for name, n in self.whole.macs_by_module.items() if lies_in(name, gone_with))
        for node in analysis.nodes:
            if node.call is None or not lies_in(node.call.name, gone):
                before, after = node.rule.macs(node, graph)
                around = None if node.call is None or node.layer is not None else plan.layers.get(node.call.name)
                total += (after if around is None else int(after * around.share_of_products)) - before
        return total


def live_macs(model: nn.Module, example_inputs: Any) -> int | None:
    """MACs of the compact form of `model` on the example, without compacting it; None if it cannot be recorded.

    The count is that of the first plan that `compact` tries. It is exact unless the user's own code insists on a width
    or on the number or the width of its heads, so that `compact` falls back to a more careful plan.

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


def live_widths(model: nn.Module, example_inputs: Any) -> dict[str, int] | None:
    """Outputs of each layer that the compact form of `model` would have, 0 for one that goes; None as in `live_macs`.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> _ = model[1].weight.data[:6].zero_()
        >>> live_widths(model, torch.randn(1, 4))
        {'0': 2, '2': 2}
    """
    try:
        graph, _, plan = _planned(check_model(model), Example.of(example_inputs))
    except SparsityError:
        return None
    gone = {name for name, action in plan.layers.items() if action.drops_module}
    cut = {name: action.outputs[1] for name, action in plan.layers.items() if isinstance(action, Slice)}
    widths = layer_widths(graph.modules[""])
    return {name: 0 if lies_in(name, gone) else cut.get(name, width) for name, width in widths.items()}


def _planned(model: nn.Module, example: Example) -> tuple[Graph, Analysis, Plan]:
    """The first plan that `compact` would try, and what it follows from."""
    graph, _ = recorded(materialise(model).eval(), example)
    heads = has_heads(graph)
    analysis = Analysis(graph, heads=heads, within=heads)
    return graph, analysis, make_plan(analysis)[0]
