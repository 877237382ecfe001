"""Which form of a stage, and which product for each group of its edges, is fastest: by the clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.compact.adaptors import EXPAND, FILL, SELECT, ExpandOutput
from diffsparse.measure.example import Example
from diffsparse.measure.latency import time_interleaved
from diffsparse.wiring.bags import DenseMix, Mix, SparseFilters, SparseMix
from diffsparse.wiring.stage import Nodes, OrdinaryStage
from diffsparse.wiring.table import ImagesLast, OnMaps, SparseNodes, TableStage, images_last

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
        if stage not in seen:
            continue
        made, mixes = [], nn.ModuleList()
        for key, mix in stage.mixes.named_children():
            choice, product = _product(f"{name}.mixes.{key}".lstrip("."), mix, seen[mix])
            made += [] if choice is None else [choice]
            mixes.append(product)
        # nobody else sees the output if the sequence itself is called
        passes_on = any(module in seen for module in sequence)
        tables = _tables(stage, mixes, seen, contiguous=not passes_on)
        # the next stage, likely to be a table, would have to turn what an ordinary one gives
        ordinary = nn.Sequential(stage, ImagesLast()) if passes_on else stage
        fastest = _fastest([ordinary, *tables], seen[stage])
        if fastest is not ordinary:
            model = _replaced(model, name, fastest.eval())
            choices += made
    return model, tuple(choices)


def _tables(
    stage: OrdinaryStage, mixes: nn.ModuleList, seen: dict[nn.Module, Tensor], *, contiguous: bool
) -> list[TableStage]:
    """The stage with its states in a table, for several numbers of images at once."""
    batch = len(seen[stage])
    fronts = [None, *mixes][:-1]
    nodes = nn.ModuleList(_nodes(group, front) for group, front in zip(stage.nodes, fronts, strict=True))
    rows = seen[stage.mixes[-1]].shape[1]
    pieces = [*(n for n in PIECES if n < batch), max(batch, 1)]
    return [TableStage(nodes, mixes, rows, images, contiguous=contiguous) for images in pieces]


def _nodes(group: nn.Module, front: nn.Module | None) -> nn.Module:
    """Nodes behind a mix on maps with the images last, in the sparse form unless compaction has made them special."""
    if not (type(group) is Nodes and type(group.filter) is nn.Conv2d):
        return OnMaps(group)
    norm: nn.Module = group.norm
    inplace = isinstance(front, Mix)
    hooks = [hook for part in group.modules() for hook in _hooks(part)]
    if type(norm) in (nn.BatchNorm2d, nn.Identity) and not hooks:
        return SparseNodes(norm, SparseFilters(group.filter), inplace=inplace)
    if type(norm) is nn.Identity and _hooks(norm) == hooks and [type(hook) for hook in hooks] == [ExpandOutput]:
        filters = SparseFilters(group.filter, norm.get_buffer(EXPAND), norm.get_buffer(FILL).relu())
        return SparseNodes(nn.Identity(), filters, inplace=inplace)
    return OnMaps(group)


def _hooks(module: nn.Module) -> list[object]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def _sequence_to_a_stage(model: nn.Module, name: str) -> list[nn.Module]:
    """The sequence in which the stage stands directly in front of another one, if there is one."""
    owner, _, key = name.rpartition(".")
    parent = model.get_submodule(owner)
    if type(parent) is not nn.Sequential:
        return []
    keys = list(parent._modules)
    behind = keys[keys.index(key) + 1 :]
    return [parent] if behind and isinstance(parent.get_submodule(behind[0]), OrdinaryStage) else []


def _recorded(model: nn.Module, modules: Sequence[nn.Module], example: Example) -> dict[nn.Module, Tensor]:
    """The input of each of the modules that runs on the example, as it is before any hook of the module's own."""
    seen: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[module] = [*args, *kwargs.values()][0]

    handles = [module.register_forward_pre_hook(record, prepend=True, with_kwargs=True) for module in modules]
    try:
        example.run(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _product(name: str, mix: nn.Module, maps: Tensor) -> tuple[MixChoice | None, nn.Module]:
    """The faster product for an ordinary convolution on these maps; what is no such convolution stays."""
    if type(mix) is not nn.Conv2d:
        return None, OnMaps(mix)
    matrix, bias = _matrix(mix, maps.shape[1])
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


def _matrix(conv: nn.Conv2d, sources: int) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a 1x1 convolution and the select and expand around it, on all `sources` maps."""
    weight, bias = conv.weight[:, :, 0, 0], conv.bias
    matrix = weight.new_zeros(len(weight), sources)
    matrix[:, getattr(conv, SELECT, slice(None))] = weight
    if not hasattr(conv, EXPAND):
        return matrix, bias
    full = conv.get_buffer(FILL).clone()
    full[conv.get_buffer(EXPAND)] = 0.0 if bias is None else bias
    return matrix.new_zeros(len(full), sources).index_copy(0, conv.get_buffer(EXPAND), matrix), full


def _fastest(candidates: Sequence[nn.Module], x: Tensor) -> nn.Module:
    times = _times(candidates, x)
    return candidates[times.index(min(times))]


def _times(modules: Sequence[nn.Module], x: Tensor) -> list[float]:
    """Seconds of each module on `x`: the lower quartile, which other work on the machine disturbs least."""
    calls = [partial(module, x) for module in modules]
    return [one.lower_quartile for one in time_interleaved(calls, device=x.device, seconds=0.01, warmup=1, min_runs=7)]


def _replaced(model: nn.Module, name: str, stage: nn.Module) -> nn.Module:
    if not name:
        return stage
    owner, _, key = name.rpartition(".")
    model.get_submodule(owner)._modules[key] = stage
    return model
