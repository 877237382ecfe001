"""Which form of a stage, and which product for each group of its edges, is fastest: by the clock."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.compact.verify import run_on_copies
from diffsparse.measure.example import Example
from diffsparse.measure.latency import time_interleaved
from diffsparse.wiring.bags import DenseMix, SparseConv, SparseMix
from diffsparse.wiring.forms import edge_matrix, hooks_of, is_known, layouts_fit, table_stage
from diffsparse.wiring.stage import OrdinaryStage
from diffsparse.wiring.table import ImagesLast, OnMaps, SparseFront, TableStage, images_last

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
    for name, stage in [(name, module) for name, module in model.named_modules() if isinstance(module, OrdinaryStage)]:
        # each after those in front of it are chosen, as they decide how its input lies in memory
        sequence = _sequence_to_a_stage(model, name)
        seen = _recorded(model, [stage, *stage.mixes, *sequence], example)
        if stage not in seen or not all(map(is_known, stage.modules())):
            continue
        made, mixes = [], nn.ModuleList()
        for key, mix in stage.mixes.named_children():
            choice, product = _product(f"{name}.mixes.{key}".lstrip("."), mix, seen[mix][0])
            made += [] if choice is None else [choice]
            mixes.append(product)
        # nobody else sees the output if the stage runs only where the sequence does
        passes_on = any(len(seen.get(module, [])) == len(seen[stage]) for module in sequence)
        states, batch = seen[stage.mixes[-1]][0], len(seen[stage][0])
        pieces = [*(n for n in PIECES if n < batch), batch]
        tables = [
            table_stage(stage, mixes, states.shape[1], images, sparse=sparse, contiguous=not passes_on)
            for images, sparse in [*((n, True) for n in pieces if layouts_fit(states, n)), (batch, False)]
        ]
        # the next stage, likely to be a table, would have to turn what an ordinary one gives
        ordinary = nn.Sequential(stage, ImagesLast()) if passes_on else stage
        fastest = _fastest([ordinary, *tables], seen[stage][0])
        if fastest is not ordinary:
            model = _replaced(model, stage, fastest.eval())
            choices += made
    return _with_sparse_fronts(model, example), tuple(choices)


def _with_sparse_fronts(model: nn.Module, example: Example) -> nn.Module:
    """Where a table gets its input straight from a convolution, that one sparse as well, if it is faster so."""
    tables = [module for module in model.modules() if isinstance(module, TableStage)]
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d) and not hooks_of(module)]
    given: dict[nn.Module, list[Tensor]] = {}
    handles = [
        conv.register_forward_hook(lambda conv, _, output: given.setdefault(conv, []).append(output)) for conv in convs
    ]
    try:
        seen = _recorded(model, [*convs, *tables], example)
    finally:
        for handle in handles:
            handle.remove()
    for table, conv in itertools.product(tables, convs):
        taken, made = seen.get(table, []), given.get(conv, [])
        if len(taken) == len(made) == 1 and taken[0] is made[0] and SparseConv.fits(conv):
            x = seen[conv][0]
            plain, sparse = nn.Sequential(conv, table), nn.Sequential(SparseFront(conv), table)
            fits = layouts_fit(made[0], len(x), reads=conv.weight[0].numel())
            if fits and _fastest([plain, sparse], x) is sparse:
                model = _replaced(model, conv, sparse[0])
    return model


def _sequence_to_a_stage(model: nn.Module, name: str) -> list[nn.Module]:
    """The sequence in which the stage stands directly in front of another one, if there is one."""
    owner, _, key = name.rpartition(".")
    parent = model.get_submodule(owner)
    if type(parent) is not nn.Sequential:
        return []
    keys = list(parent._modules)
    behind = [parent._modules[key] for key in keys[keys.index(key) + 1 :]]
    return [parent] if behind and isinstance(behind[0], OrdinaryStage) else []


def _recorded(model: nn.Module, modules: Sequence[nn.Module], example: Example) -> dict[nn.Module, list[Tensor]]:
    """The inputs of those of the modules that run on the example, as they are before any hook of the module's own."""
    seen: dict[nn.Module, list[Tensor]] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.setdefault(module, []).append([*args, *kwargs.values()][0])

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


def _replaced(model: nn.Module, stage: nn.Module, by: nn.Module) -> nn.Module:
    for module in list(model.modules()):
        for key, child in module._modules.items():
            if child is stage:
                module._modules[key] = by
    return by if model is stage else model
