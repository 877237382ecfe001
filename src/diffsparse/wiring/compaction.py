"""From a wired network to a fast one for inference that computes the same with its live nodes and edges only."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from diffsparse.compaction import Compacted, compact
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.graph import read_counts
from diffsparse.compaction.materialise import check_model
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.verify import Trials, default_tolerance, run_on_copies
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.measuring.latency import time_interleaved
from diffsparse.module_tree import replace_modules
from diffsparse.undisturbed import undisturbed
from diffsparse.wiring import table as tables
from diffsparse.wiring.bags import DenseMix, SparseConv, SparseMix
from diffsparse.wiring.stage import OrdinaryStage, WiredStage

Model = TypeVar("Model", bound=nn.Module)

# Numbers of images at once to try for a stage, besides the whole batch.
PIECES = (16, 64)


@dataclass(frozen=True, kw_only=True)
class MixChoice:
    """The edges that are left into one group of nodes, and how long the two products took on the example."""

    name: str
    outputs: int
    sources: int
    edges: int
    dense_seconds: float
    sparse_seconds: float

    @property
    def sparse(self) -> bool:
        """Whether the sparse product was faster."""
        return self.sparse_seconds < self.dense_seconds

    def __str__(self) -> str:
        share = f"{self.edges / (self.sources * self.outputs):.1%}"
        times = f"dense {1e3 * self.dense_seconds:.3f} ms, sparse {1e3 * self.sparse_seconds:.3f} ms"
        return f"{self.name}: {self.edges} edges from {self.sources} to {self.outputs} nodes ({share}), {times}"


@dataclass(frozen=True, kw_only=True)
class CompactWiring(Generic[Model]):
    """A wired network for inference; prints as the choices made for its edges."""

    model: Model
    """The fast network: no gates, no dead nodes, folded batch norms, dense or sparse products; for inference only."""
    compacted: Compacted[Model] = field(repr=False)
    """The compact network before products were chosen: ordinary layers that can be saved, exported or trained."""
    max_difference: float
    """Largest difference between the outputs of `model` and of the gated network, relative to the largest output."""
    choices: tuple[MixChoice, ...]
    """One choice per group of nodes with incoming edges, except in stages that are faster as they are."""

    def __str__(self) -> str:
        return "\n".join([*map(str, self.choices), f"largest relative difference {self.max_difference:.2g}"])


def compact_wiring(model: Model, example_inputs: Any, *, tolerance: float | None = None) -> CompactWiring[Model]:
    """Remove dead nodes, then run the remaining edges dense or sparse, whichever is faster on the example.

    Give an example with the batch and image size that the network should be fast for. The result works for every size.

    Args:
        model: a network that contains `WiredStage`s, or the result of compacting one; it is not changed.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        tolerance: largest relative difference to accept; by default what rounding does in the model's dtype.

    Raises `SparsityError` if there is no wired stage, the model does not run, or the result would differ from it.

    Example:
        >>> stage = WiredStage(4, 8, groups=2).eval()
        >>> small = compact_wiring(stage, torch.randn(2, 4, 6, 6))
        >>> x = torch.randn(5, 4, 7, 7)
        >>> torch.allclose(small.model(x), stage(x), atol=1e-5)
        True
    """
    model = check_model(model)
    if not any(isinstance(module, WiredStage | OrdinaryStage) for module in model.modules()):
        raise SparsityError(f"{type(model).__name__} has no WiredStage; use ds.compact")
    compacted = compact(model, example_inputs, tolerance=tolerance, fold=True)
    example = compacted.example
    fast, choices = _choose_products(duplicate(compacted.model).eval(), example)
    given = (example.args, example.kwargs)
    with undisturbed(model, device=example.device):
        limit = default_tolerance(model) if tolerance is None else tolerance
        trials = Trials(*given, run_on_copies(model, given), limit)
        trials.note_answers(model)
    apart = trials.check(fast)
    return CompactWiring(model=cast(Model, fast), compacted=compacted, max_difference=apart, choices=choices)


@torch.no_grad()
def _choose_products(model: nn.Module, example: Example) -> tuple[nn.Module, tuple[MixChoice, ...]]:
    """`model` with each ordinary stage in its fastest form, and the choices of products in those forms."""
    choices: list[MixChoice] = []
    sources = _sources(model, example)
    for name, stage in [(name, module) for name, module in model.named_modules() if isinstance(module, OrdinaryStage)]:
        source = sources.get(stage)
        front = [source] if SparseConv.fits(source) and not tables.hooks_of(source) else []
        # in order, because the form of earlier stages decides how the input of this one lies in memory
        seen = _inputs(model, [stage, *stage.mixes, *front], example)
        if stage not in seen or not all(map(tables.is_known, stage.modules())):
            continue
        prefix = f"{name}.mixes.".lstrip(".")
        made = [_product(prefix + key, mix, seen[mix]) for key, mix in stage.mixes.named_children()]
        mixes = nn.ModuleList(product for product, _ in made)
        table = _fastest_table(stage, mixes, seen, passes_on=stage in sources.values())
        if table is not None:
            choices += [choice for _, choice in made if choice is not None]
            model = replace_modules(model, {stage: table.eval()})
            for conv in front:
                model = replace_modules(model, {conv: _fastest_front(conv, table, seen[conv], seen[stage])})
    return model, tuple(choices)


def _sources(model: nn.Module, example: Example) -> dict[nn.Module, nn.Module]:
    """For each stage, the convolution or stage that computes its input and that nothing else reads."""
    graph, _ = recorded(model, example)
    reads, counts = read_counts(graph.nodes, graph.results), graph.call_counts()
    calls = [call for call in graph.calls if isinstance(call.module, nn.Conv2d | OrdinaryStage)]
    once = [call for call in calls if counts[call.module] == 1]
    # backwards, so that the output of a stage counts as the stage's and not as its last convolution's
    given = {id(call.output): call.module for call in reversed(once) if reads[id(call.output)] == 1}
    stages = [call for call in once if isinstance(call.module, OrdinaryStage)]
    return {call.module: given[id(call.input)] for call in stages if id(call.input) in given}


def _inputs(model: nn.Module, modules: Sequence[nn.Module], example: Example) -> dict[nn.Module, Tensor]:
    """The first input of each of the modules that runs on the example, before any of its own hooks."""
    seen: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.setdefault(module, [*args, *kwargs.values()][0])

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(record, prepend=True, with_kwargs=True))
        run_on_copies(model, (example.args, example.kwargs))
    return seen


def _product(name: str, mix: nn.Module, maps: Tensor) -> tuple[nn.Module, MixChoice | None]:
    """The faster product for an ordinary convolution on these maps; any other module stays, with no choice made."""
    if type(mix) is not nn.Conv2d:
        return tables.OnMaps(mix), None
    matrix, bias = tables.edge_matrix(mix, maps.shape[1])
    dense, sparse = DenseMix(matrix, bias), SparseMix(matrix, bias)
    dense_seconds, sparse_seconds = _times([dense, sparse], tables.images_last(maps[: PIECES[0]]))
    sizes = {"outputs": mix.out_channels, "sources": mix.in_channels, "edges": sparse.values.numel()}
    choice = MixChoice(name=name, **sizes, dense_seconds=dense_seconds, sparse_seconds=sparse_seconds)
    return sparse if choice.sparse else dense, choice


def _fastest_table(
    stage: OrdinaryStage, mixes: nn.ModuleList, seen: dict[nn.Module, Tensor], *, passes_on: bool
) -> nn.Module | None:
    """The fastest of several tables for the stage, or None if the stage is faster as it is."""
    x, states = seen[stage], seen[stage.mixes[-1]]
    pieces = [*(n for n in PIECES if n < len(x)), len(x)]
    candidates = [
        tables.table_stage(stage, mixes, states.shape[1], images, sparse=sparse, contiguous=not passes_on)
        for images, sparse in [*((n, True) for n in pieces if tables.layouts_fit(states, n)), (len(x), False)]
    ]
    # the next stage is probably a table and would have to rearrange the output of an ordinary stage
    ordinary = nn.Sequential(stage, tables.ImagesLast()) if passes_on else stage
    fastest = _fastest([ordinary, *candidates], x)
    return None if fastest is ordinary else fastest


def _fastest_front(conv: nn.Conv2d, table: nn.Module, x: Tensor, output: Tensor) -> nn.Module:
    """The convolution in front of a table, from `x` to `output`: ordinary or sparse."""
    if not tables.layouts_fit(output, len(x), reads=conv.weight[0].numel()):
        return conv
    sparse = tables.SparseFront(conv)
    pairs = [nn.Sequential(conv, table), nn.Sequential(sparse, table)]
    return conv if _fastest(pairs, x) is pairs[0] else sparse


def _fastest(candidates: Sequence[nn.Module], x: Tensor) -> nn.Module:
    times = _times(candidates, x)
    return candidates[times.index(min(times))]


def _times(modules: Sequence[nn.Module], x: Tensor) -> list[float]:
    """Seconds that each module takes on `x`: the lower quartile, which other work on the machine disturbs least."""
    calls = [partial(module, x) for module in modules]
    return [one.lower_quartile for one in time_interleaved(calls, device=x.device, seconds=0.01, warmup=1, min_runs=7)]
