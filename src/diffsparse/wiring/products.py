"""Which form of a stage, and which product for each group of its edges, is fastest: by the clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.compaction.graph import read_counts
from diffsparse.compaction.pipeline import recorded
from diffsparse.compaction.verify import run_on_copies
from diffsparse.example import Example
from diffsparse.measuring.latency import time_interleaved
from diffsparse.module_tree import replace_modules
from diffsparse.wiring.bags import DenseMix, SparseConv, SparseMix
from diffsparse.wiring.forms import edge_matrix, hooks_of, is_known, layouts_fit, table_stage
from diffsparse.wiring.stage import OrdinaryStage
from diffsparse.wiring.table import ImagesLast, OnMaps, SparseFront, images_last

PIECES = (16, 64)
"""Images at once that are tried for a stage, besides the whole batch."""


@dataclass(frozen=True, kw_only=True)
class MixChoice:
    """How the edges into one group of nodes are computed, and what was measured."""

    name: str
    """Qualified name of the group's edges."""
    outputs: int
    """Target nodes that are left."""
    sources: int
    """Source nodes that are left."""
    edges: int
    """Edges between them."""
    dense_seconds: float
    """Time of the dense product on the example."""
    sparse_seconds: float
    """Time of the sparse product on the example."""

    @property
    def sparse(self) -> bool:
        """Whether the sparse product was faster."""
        return self.sparse_seconds < self.dense_seconds

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.edges} edges from {self.sources} to {self.outputs} nodes "
            f"({self.edges / (self.sources * self.outputs):.1%}), dense {1e3 * self.dense_seconds:.3f} ms, "
            f"sparse {1e3 * self.sparse_seconds:.3f} ms"
        )


@torch.no_grad()
def choose_products(model: nn.Module, example: Example) -> tuple[nn.Module, tuple[MixChoice, ...]]:
    """`model`, its ordinary stages in the form that runs fastest, and how the products of that form were chosen."""
    choices: list[MixChoice] = []
    sources = _sources(model, example)
    for name, stage in [(name, module) for name, module in model.named_modules() if isinstance(module, OrdinaryStage)]:
        source = sources.get(stage)
        front = [source] if SparseConv.fits(source) and not hooks_of(source) else []
        # each after those in front of it are chosen, as they decide how its input lies in memory
        seen = _inputs(model, [stage, *stage.mixes, *front], example)
        if stage not in seen or not all(map(is_known, stage.modules())):
            continue
        made, mixes = [], nn.ModuleList()
        for key, mix in stage.mixes.named_children():
            choice, product = _product(f"{name}.mixes.{key}".lstrip("."), mix, seen[mix])
            made += [] if choice is None else [choice]
            mixes.append(product)
        table = _fastest_table(stage, mixes, seen, passes_on=stage in sources.values())
        if table is not None:
            choices += made
            model = replace_modules(model, {stage: table.eval()})
            for conv in front:
                model = replace_modules(model, {conv: _fastest_front(conv, table, seen[conv], seen[stage])})
    return model, tuple(choices)


def _sources(model: nn.Module, example: Example) -> dict[nn.Module, nn.Module]:
    """For a stage the convolution or other stage that gives its input, where that goes nowhere else."""
    graph, _ = recorded(model, example)
    reads, counts = read_counts(graph.nodes, graph.results), graph.call_counts()
    calls = [call for call in graph.calls if isinstance(call.module, nn.Conv2d | OrdinaryStage)]
    once = [call for call in calls if counts[call.module] == 1]
    # backwards: what a stage gives, its last convolution gave before
    given = {id(call.output): call.module for call in reversed(once) if reads[id(call.output)] == 1}
    stages = [call for call in once if isinstance(call.module, OrdinaryStage)]
    return {call.module: given[id(call.input)] for call in stages if id(call.input) in given}


def _fastest_table(
    stage: OrdinaryStage, mixes: nn.ModuleList, seen: dict[nn.Module, Tensor], *, passes_on: bool
) -> nn.Module | None:
    """The fastest of several tables for the stage, None if it is faster as it is."""
    x, states = seen[stage], seen[stage.mixes[-1]]
    pieces = [*(n for n in PIECES if n < len(x)), len(x)]
    tables = [
        table_stage(stage, mixes, states.shape[1], images, sparse=sparse, contiguous=not passes_on)
        for images, sparse in [*((n, True) for n in pieces if layouts_fit(states, n)), (len(x), False)]
    ]
    # the next stage, likely to be a table, would have to turn what an ordinary one gives
    ordinary = nn.Sequential(stage, ImagesLast()) if passes_on else stage
    fastest = _fastest([ordinary, *tables], x)
    return None if fastest is ordinary else fastest


def _fastest_front(conv: nn.Conv2d, table: nn.Module, x: Tensor, output: Tensor) -> nn.Module:
    """The convolution in front of a table, from `x` to `output`, as it is or sparse."""
    if not layouts_fit(output, len(x), reads=conv.weight[0].numel()):
        return conv
    sparse = SparseFront(conv)
    pairs = [nn.Sequential(conv, table), nn.Sequential(sparse, table)]
    return conv if _fastest(pairs, x) is pairs[0] else sparse


def _inputs(model: nn.Module, modules: Sequence[nn.Module], example: Example) -> dict[nn.Module, Tensor]:
    """The first input of those of the modules that run on the example, as it is before any hook of the module's own."""
    seen: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.setdefault(module, [*args, *kwargs.values()][0])

    handles = [module.register_forward_pre_hook(record, prepend=True, with_kwargs=True) for module in modules]
    try:
        run_on_copies(model, (example.args, example.kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _product(name: str, mix: nn.Module, maps: Tensor) -> tuple[MixChoice | None, nn.Module]:
    """The faster product for an ordinary convolution on these maps; what is no such convolution stays."""
    if type(mix) is not nn.Conv2d:
        return None, OnMaps(mix)
    matrix, bias = edge_matrix(mix, maps.shape[1])
    dense, sparse = DenseMix(matrix, bias), SparseMix(matrix, bias)
    slow, quick = _times([dense, sparse], images_last(maps[: PIECES[0]]))
    choice = MixChoice(
        name=name,
        outputs=mix.out_channels,
        sources=mix.in_channels,
        edges=sparse.values.numel(),
        dense_seconds=slow,
        sparse_seconds=quick,
    )
    return choice, sparse if choice.sparse else dense


def _fastest(candidates: Sequence[nn.Module], x: Tensor) -> nn.Module:
    times = _times(candidates, x)
    return candidates[times.index(min(times))]


def _times(modules: Sequence[nn.Module], x: Tensor) -> list[float]:
    """Seconds of each module on `x`: the lower quartile, which other work on the machine disturbs least."""
    calls = [partial(module, x) for module in modules]
    return [one.lower_quartile for one in time_interleaved(calls, device=x.device, seconds=0.01, warmup=1, min_runs=7)]
