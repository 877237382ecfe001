"""`compact`: from a gated model to a smaller one that computes the same."""

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from torch import nn

from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.apply import COMPACT, shrink_in_place, write_plan_tensors
from diffsparse.compaction.capture import capture
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.materialise import check_model, materialise
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.planner import make_plan
from diffsparse.compaction.verify import Trials, copied, default_tolerance, same_draws
from diffsparse.errors import SparsityError, SparsityWarning, require_number, require_whole
from diffsparse.example import Example
from diffsparse.measuring import Measurement, measure
from diffsparse.module_tree import copy_training_flags, modules_by_name

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Compacted(Generic[Model]):
    """A compact model and how it was made; prints as the plan and the costs."""

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
    """Why plans that make more tensors narrower were given up, if any were: the user's code insists on a width."""

    @cached_property
    def before(self) -> Measurement:
        """Cost of the model as it was, without latency; measured when first asked for."""
        return measure(materialise(self.original), self.example.inputs, latency=False)

    @cached_property
    def after(self) -> Measurement:
        """Cost of the compact model, without latency; measured when first asked for."""
        return measure(self.model, self.example.inputs, latency=False)

    @property
    def repeated(self) -> bool:
        """Whether the original was compact already, so that the plan does not start from its class."""
        return COMPACT in vars(self.original)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What stayed at full width, and why."""
        return self.plan.kept

    def __str__(self) -> str:
        costs = "\n".join(
            f"{name:<10} {now:>15,} of {was:>15,} ({now / was if was else 1:.1%})"
            for name, was, now in (
                ("MACs", self.before.macs, self.after.macs),
                ("parameters", self.before.params, self.after.params),
                ("bytes", self.before.bytes, self.after.bytes),
            )
        )
        apart = "not compared" if self.max_difference is None else f"{self.max_difference:.2g}"
        return f"{self.plan}\n{costs}\nlargest relative difference {apart}"


# How far the code between layers is trusted to work at other widths: fully at first, not at all in the end. The last
# two are for code that the recorder cannot see into, such as vmapped functions.
_ATTEMPTS: tuple[dict[str, Any], ...] = (
    {"narrow": True, "trust_reshape_sizes": True},
    {"narrow": True, "trust_reshape_sizes": False},
    {"narrow": False, "trust_reshape_sizes": False},
    {"narrow": False, "trust_reshape_sizes": False, "assume_unseen_reads": "unread"},
    {"narrow": False, "trust_reshape_sizes": False, "assume_unseen_reads": "all"},
)


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
        SparsityError: the model does not run on the example, or every plan changes its outputs by more than the
            tolerance.

    Example:
        >>> import torch, diffsparse as ds
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
        >>> _ = model[1].weight.data[:6].zero_()
        >>> small = ds.compact(model, torch.randn(1, 3, 8, 8))
        >>> print(small.plan)
        0  in 3 -> 3, out 8 -> 2
        1  out 8 -> 2
        3  in 8 -> 2, out 4 -> 4
    """
    require_whole("round_to", round_to, low=1)
    if tolerance is not None:
        require_number("tolerance", tolerance, low=0)
    model = check_model(model)
    example = Example.of(example_inputs)
    small, training = _in_eval_mode(materialise(model))
    graph, answer = recorded(small, example)
    trials = Trials(example.args, example.kwargs, answer, default_tolerance(small) if tolerance is None else tolerance)
    for problem in filter(None, (_reads_of_data(model, graph), _idle_modules(graph))):
        _warn(problem)
    problems: list[Exception] = []
    for attempt in _ATTEMPTS:
        if problems:
            # the failed attempt has cut the recorded model
            small, _ = _in_eval_mode(materialise(model))
            graph.attach(small)
        plan, tensors = make_plan(Analysis(graph, round_to=round_to, **attempt), fold)
        if strict and plan.kept:
            raise SparsityError(f"strict=True, but some layers cannot be made narrower:\n{plan}")
        trials.note_answers(small, any_size=not plan.needs_size)
        try:
            write_plan_tensors(shrink_in_place(small, plan), tensors)
            difference = trials.check(small, any_size=not plan.needs_size)
        except Exception as error:
            # the user's own code runs here, and may raise anything at an unexpected width
            problems.append(error)
            continue
        if training:
            copy_training_flags(model, small)
        constant = _is_constant(graph)
        if constant:
            _warn(f"the output of {type(model).__name__} no longer depends on its input: every path through it is dead")
        return Compacted(
            model=cast(Model, small),
            plan=plan,
            max_difference=difference,
            original=model,
            example=example,
            constant_output=constant,
            fallbacks=tuple(map(str, problems)),
        )
    last = problems[-1]
    raise SparsityError(f"{type(model).__name__} could not be compacted without changing it: {last}") from last


def recorded(model: nn.Module, example: Example) -> tuple[Graph, Any]:
    """The graph and the output of `model`, which must be in eval mode, on copies of the example."""
    args, kwargs = copied((example.args, example.kwargs))
    try:
        with same_draws():
            return capture(model, args, kwargs)
    except Exception:
        # if the model itself does not run, say so with the shapes
        example.run(model)
        raise


def _reads_of_data(model: nn.Module, graph: Graph) -> str:
    """A warning about control flow that may depend on data, if there is any."""
    reads = [node for node in graph.nodes if not node.outputs and any(value.depends_on_input for value in node.inputs)]
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


def _warn(problem: str) -> None:
    warnings.warn(problem, SparsityWarning, stacklevel=3)


def _is_constant(graph: Graph) -> bool:
    return all(value.known or (value.axis is not None and value.fixed.all()) for value in graph.results)


def _in_eval_mode(model: nn.Module) -> tuple[nn.Module, bool]:
    """`model` in eval mode, and whether any part of it was not."""
    training = any(module.training for module in modules_by_name(model).values())
    return model.eval() if training else model, training
