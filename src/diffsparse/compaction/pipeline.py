"""`compact`: from a gated model to a smaller one that computes the same."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

from torch import nn

from diffsparse.compaction.apply import with_earlier
from diffsparse.compaction.attempts import first_exact
from diffsparse.compaction.fastest import SECONDS, Backend, Choice, Fastest
from diffsparse.compaction.graph import Graph, is_constant
from diffsparse.compaction.materialise import check_model, materialise, materialise_and_look
from diffsparse.compaction.numbers_used import numbers_of
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.soundness import require_finite, require_own_tensors
from diffsparse.compaction.verify import Trials, default_tolerance
from diffsparse.compaction.widening import Widening
from diffsparse.errors import SparsityError, SparsityWarning, require_number, require_one_of, require_whole
from diffsparse.example import Example, tensors_in
from diffsparse.measuring import Measurement, measure, samples
from diffsparse.measuring.onnx_graph import onnxruntime
from diffsparse.module_tree import copy_training_flags, modules_by_name
from diffsparse.undisturbed import restoring

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    insists_on_head_width: bool = False
    """Whether the code insists on the width of its heads: dead channels within them left the layers only."""
    choice: Choice | None = None
    """What the clock decided, if `optimize` asked it."""
    multiplied: Mapping[str, float] = field(default_factory=dict, repr=False)
    """What parameters of the model were multiplied by afterwards, by name, without changing what it computes."""
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

    def plot(self, *, dark: bool = False) -> "Figure":
        """A picture of the widths of all layers before and after: `ds.plot.widths` of this."""
        from diffsparse import plot

        return plot.widths(self, dark=dark)

    def __str__(self) -> str:
        lines, batch = [str(self.plan)], samples(self.model, self.example, self.after.macs)
        for name, key, shared in (("MACs", "macs", batch), ("parameters", "params", 1), ("bytes", "bytes", 1)):
            was, now = getattr(self.before, key) // shared, getattr(self.after, key) // shared
            lines.append(f"{name:<10} {now:>15,} of {was:>15,} ({now / was if was else 1:.1%})")
        apart = "not compared" if self.max_difference is None else f"{self.max_difference:.2g}"
        lines += [] if self.choice is None else [str(self.choice)]
        return "\n".join([*lines, f"largest relative difference {apart}"])


def compact(
    model: Model,
    example_inputs: Any,
    *,
    tolerance: float | None = None,
    round_to: int = 1,
    strict: bool = False,
    fold: bool | None = None,
    optimize: Literal["latency"] | None = None,
    seconds: float = SECONDS,
    backend: Backend = "torch",
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
        fold: fold batch norms into the layers in front of them; the model is then for inference. By default they are
            folded only if `optimize` is given and that is faster.
        optimize: "latency" decides by the clock, on this machine and on this example, which dead channels to keep:
            widths that kernels like, fewer selects and expands. The result is as exact, and never slower than the
            original: if nothing helps, all widths stay, and `kept` says so. The plan holds what was decided.
        seconds: how long that may take, about.
        backend: what is timed, "torch" or "onnxruntime".

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
    _check_options(round_to, tolerance, optimize, seconds, backend)
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
        if graph.sizes_tried:
            trials.add_other_sizes(model)
        if graph.masks_tried:
            trials.add_other_masks(model)
        widening, folds = Widening(round_to=round_to), bool(fold) and optimize is None
        found, choice = first_exact(model, small, graph, trials, widening=widening, strict=strict, fold=folds), None
        if optimize is not None:
            options: Any = {"fold": fold is not False, "strict": strict, "seconds": seconds, "backend": backend}
            found, choice = Fastest(model, graph, trials, example, **options).search(found)
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
            insists_on_head_width=found.insists_on_head_width,
            choice=choice,
        )


def _check_options(round_to: int, tolerance: float | None, optimize: object, seconds: float, backend: object) -> None:
    require_whole("round_to", round_to, low=1)
    if tolerance is not None:
        require_number("tolerance", tolerance, low=0)
    require_number("seconds", seconds, low=0)
    if optimize not in (None, "latency"):
        raise SparsityError(f"optimize must be 'latency' or None, got {optimize!r:.50}")
    require_one_of("backend", backend, get_args(Backend))
    if optimize is not None and round_to != 1:
        raise SparsityError(f"optimize='latency' chooses widths by the clock; leave out round_to={round_to}")
    if optimize is not None and backend == "onnxruntime":
        onnxruntime()


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
