"""`compact`: from a gated model to a smaller one that computes the same; `live_macs`: what that one would cost."""

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from torch import nn

from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.apply import with_earlier
from diffsparse.compaction.attempts import first_exact, has_heads
from diffsparse.compaction.graph import Graph, is_constant
from diffsparse.compaction.materialise import check_model, materialise, materialise_and_look
from diffsparse.compaction.numbers_used import numbers_of
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.planner import make_plan
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.soundness import require_finite, require_own_tensors
from diffsparse.compaction.verify import Trials, default_tolerance
from diffsparse.errors import SparsityError, SparsityWarning, require_number, require_whole
from diffsparse.example import Example, tensors_in
from diffsparse.measuring import Measurement, count, measure, samples
from diffsparse.module_tree import copy_training_flags, lies_in, modules_by_name
from diffsparse.undisturbed import restoring

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Compacted(Generic[Model]):
    """A compact model and how it was made; prints as the plan and the costs, with the MACs of one sample."""

    model: Model
    """The user's own module tree with smaller layers and no gates."""
    plan: Plan
    """What was done to each layer."""
    max_difference: float | None
    """Largest difference from the original seen, relative to the largest output; None if nothing was compared."""
    original: nn.Module = field(repr=False)
    """The model that was compacted."""
    example: Example = field(repr=False)
    """What it was recorded on."""
    constant_output: bool = False
    """Whether the output no longer depends on the input."""
    fallbacks: tuple[str, ...] = ()
    """Why bolder plans were given up, if any were: the user's code insists on a width, or on a module that could go."""
    insists_on_heads: bool = False
    """Whether the code insists on the number of its heads: dead ones left the layers, not the tensors between."""
    known_before: Measurement | None = field(default=None, repr=False)
    """Cost of the model as it was, if that was measured already."""

    @cached_property
    def before(self) -> Measurement:
        """Cost of the model as it was, without latency; measured when first asked for."""
        return self.known_before or measure(materialise(self.original), self.example.inputs, latency=False)

    @cached_property
    def after(self) -> Measurement:
        """Cost of the compact model, without latency; measured when first asked for."""
        return measure(self.model, self.example.inputs, latency=False)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What stayed at full width, and why."""
        return self.plan.kept

    def __str__(self) -> str:
        lines, batch = [str(self.plan)], samples(self.model, self.example, self.after.macs)
        for name, key, shared in (("MACs", "macs", batch), ("parameters", "params", 1), ("bytes", "bytes", 1)):
            was, now = getattr(self.before, key) // shared, getattr(self.after, key) // shared
            lines.append(f"{name:<10} {now:>15,} of {was:>15,} ({now / was if was else 1:.1%})")
        apart = "not compared" if self.max_difference is None else f"{self.max_difference:.2g}"
        return "\n".join([*lines, f"largest relative difference {apart}"])


def compact(
    model: Model,
    example_inputs: Any,
    *,
    tolerance: float | None = None,
    round_to: int = 1,
    strict: bool = False,
    fold: bool = False,
) -> Compacted[Model]:
    """Remove every channel that cannot matter; the returned model computes the same for every input.

    The model runs once on the example, in eval mode, while every operation is recorded. Zero and constant channels are
    followed forward, channels that nobody reads are followed backward, and what is left decides all widths.
    Constants fold into biases, dead residual blocks leave the tree, and a layer whose output has become constant is
    replaced by that constant. What an operator without a rule touches keeps its width and is listed in `kept`.

    Args:
        model: a gated model, or any model whose scales or weights contain zeros. It is not changed.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        tolerance: largest relative difference to accept; by default what rounding does in the model's dtype.
        round_to: keep a few dead channels so that widths are multiples of this, where layers are that wide.
        strict: raise instead of keeping the width of what no rule describes.
        fold: fold batch norms into the layers in front of them; the model is then for inference.

    Raises:
        SparsityError: the model does not run on the example, or a copy of it computes something else.

    Example:
        >>> import torch, diffsparse as ds
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
        >>> _ = model[1].weight.data[:6].zero_()
        >>> print(ds.compact(model, torch.randn(1, 3, 8, 8)).plan)
        0  in 3 -> 3, out 8 -> 2
        1  out 8 -> 2
        3  in 8 -> 2, out 4 -> 4
    """
    require_whole("round_to", round_to, low=1)
    if tolerance is not None:
        require_number("tolerance", tolerance, low=0)
    model, example = check_model(model), Example.of(example_inputs)
    small, has_code = materialise_and_look(model)
    # the copy may share code with the model, and that may write to what it holds
    with restoring(model, hooks=True) if has_code else nullcontext():
        training = any(module.training for module in modules_by_name(small).values())
        graph, answer = recorded(small.eval() if training else small, example)
        require_finite(model, graph.tensors, example, answer)
        require_own_tensors(model, graph.strangers)
        graph.strangers.clear()
        accepted = default_tolerance(small) if tolerance is None else tolerance
        trials = Trials(example.args, example.kwargs, answer, accepted, numbers_of(graph))
        for problem in filter(None, (_reads_of_data(model, graph), _idle_modules(graph))):
            warnings.warn(problem, SparsityWarning, stacklevel=2)
        if has_code:
            trials.check_copy(model)
        if graph.masks_tried:
            trials.add_other_masks(model)
        found = first_exact(model, small, graph, trials, round_to=round_to, strict=strict, fold=fold)
        if constant := "" if found.unchanged else _constant_output(model, graph, answer):
            warnings.warn(constant, SparsityWarning, stacklevel=2)
        if training:
            copy_training_flags(model, found.model)
        return Compacted(
            model=cast(Model, found.model),
            plan=with_earlier(found.plan, model),
            max_difference=found.difference,
            original=model,
            example=example,
            constant_output=bool(constant) and graph.constant,
            fallbacks=found.problems,
            insists_on_heads=found.insists_on_heads,
        )


def _constant_output(model: nn.Module, graph: Graph, answer: Any) -> str:
    name = type(model).__name__
    if graph.constant:
        return f"the output of {name} no longer depends on its input: every path through it is dead"
    keys: list[str] = list(map(str, range(len(graph.results))))
    if isinstance(answer, dict):
        keys = [str(key) for key, part in answer.items() for _ in tensors_in(part)]
    named = zip(keys, graph.results, strict=True)
    dead = [repr(key) for key, value in named if value.depends_on_input and is_constant(value)]
    if not dead:
        return ""
    return f"of what {name} returns, {', '.join(dead)} no longer depends on the input: every path to it is dead"


def _reads_of_data(model: nn.Module, graph: Graph) -> str:
    """A warning about control flow that may depend on data, if there is any."""
    reads = graph.reads_of_data(of_masks=False) + ([] if graph.masks_tried else graph.reads_of_data(of_masks=True))
    where = ", ".join(sorted({f"'{node.call.name}'" for node in reads if node.call and node.call.name}))
    if not reads:
        return ""
    return (
        f"the forward pass of {type(model).__name__}{f' (in {where})' if where else ''} reads the data of a tensor "
        f"({', '.join(sorted({node.op for node in reads}))}). If it branches on it, only the branch taken for the "
        "example was recorded, and the compact model is valid for inputs that take the same branch"
    )


def _idle_modules(graph: Graph) -> str:
    """A warning about modules with parameters that did not run, if there are any."""
    called = {call.module for call in graph.calls}
    missing = {
        name: module._parameters
        for name, module in graph.modules.items()
        if module not in called and any(parameter is not None for parameter in module._parameters.values())
    }
    used = {value.parameter for node in graph.nodes for value in node.inputs} if missing else set()
    idle = [name for name, held in missing.items() if not any(f"{name}.{key}" in used for key in held)]
    shown = ", ".join(idle[:5]) + (f" and {len(idle) - 5} more" if len(idle) > 5 else "")
    return f"modules that did not run in eval mode keep their widths: {shown}" if idle else ""


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
        analysis = Analysis(graph, heads=has_heads(graph))
        plan, _ = make_plan(analysis)
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
    or on the number of its heads, so that `compact` falls back to a more careful plan.

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
