"""From a wired network to the one that computes the same with its live nodes and edges only."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from diffsparse.compact import Compacted, compact
from diffsparse.compact.adaptors import EXPAND, FILL, SELECT
from diffsparse.compact.bake import check_model
from diffsparse.compact.verify import default_tolerance, difference, random_like
from diffsparse.errors import SparsityError
from diffsparse.measure.example import Example
from diffsparse.measure.latency import time_interleaved
from diffsparse.wiring.stage import OrdinaryStage, WiredStage
from diffsparse.wiring.table import DenseMix, SparseMix, TableStage

Model = TypeVar("Model", bound=nn.Module)

PIECES = (4, 16, 64)
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


@dataclass(frozen=True, kw_only=True)
class CompactWiring(Generic[Model]):
    """A wired network for inference; prints as the choices made for its edges."""

    model: Model
    """Without gates and dead nodes, batch norms folded, edges dense or sparse as measured; in eval mode."""
    compacted: Compacted[Model] = field(repr=False)
    """The compact network before products were chosen: ordinary layers, which can be saved, exported or trained on."""
    max_difference: float
    """Largest difference of `model` from the gated network that was seen, relative to the largest output."""
    choices: tuple[MixChoice, ...]
    """For each group of nodes with edges into it. Those of stages that stayed as they were are left out."""

    def __str__(self) -> str:
        lines = [str(choice) for choice in self.choices]
        return "\n".join([*lines, f"largest relative difference {self.max_difference:.2g}"])


def with_ordinary_stages(model: Model) -> Model:
    """A copy of `model` in which every `WiredStage` holds its edges in ordinary 1x1 convolutions."""
    plain = copy.deepcopy(model)
    stages = {module: module.ordinary() for module in plain.modules() if isinstance(module, WiredStage)}
    for module in list(plain.modules()):
        for key, child in module._modules.items():
            if isinstance(child, WiredStage):
                module._modules[key] = stages[child]
    return cast(Model, stages[plain]) if isinstance(plain, WiredStage) else plain


def compact_wiring(model: Model, example_inputs: Any, *, tolerance: float | None = None) -> CompactWiring[Model]:
    """Remove dead nodes, then run the edges that are left dense or sparse, whichever is faster on the example.

    Dead nodes leave with their filters and batch norms, by `diffsparse.compact`. A node without incoming but with
    outgoing edges sends a constant that varies at the border of the map: it stays, and so the result is exact for
    every image size. Only where a whole group has become constant its map is stored, for images of the example's size;
    others raise. Give an example of the batch and image size that the network is to be fast for.

    Args:
        model: a network with `WiredStage`s in it; it is left as it is.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        tolerance: largest relative difference to accept; by default what rounding does in the model's dtype.

    Raises:
        SparsityError: there is no wired stage, the model does not run, or the result would differ from it.

    Example:
        >>> stage = WiredStage(4, 8, groups=2).eval()
        >>> small = compact_wiring(stage, torch.randn(2, 4, 6, 6))
        >>> x = torch.randn(5, 4, 7, 7)
        >>> torch.allclose(small.model(x), stage(x), atol=1e-5)
        True
    """
    model = check_model(model)
    if not any(isinstance(module, WiredStage) for module in model.modules()):
        raise SparsityError(f"{type(model).__name__} has no WiredStage; use diffsparse.compact")
    compacted = compact(with_ordinary_stages(model), example_inputs, tolerance=tolerance, fold=True)
    example = Example.of(example_inputs)
    fast, choices = _choose_products(copy.deepcopy(compacted.model).eval(), example)
    apart = _largest_difference(copy.deepcopy(model).eval(), fast, example)
    limit = default_tolerance(model) if tolerance is None else tolerance
    if not apart <= limit:
        raise SparsityError(f"outputs differ by {apart:.3g} relative, more than the tolerance of {limit:g}")
    return CompactWiring(model=cast(Model, fast), compacted=compacted, max_difference=apart, choices=choices)


@torch.no_grad()
def _largest_difference(original: nn.Module, fast: nn.Module, example: Example) -> float:
    """On the example and on random numbers like it."""
    given = (example.args, example.kwargs)
    trials = [given, random_like(given, torch.Generator().manual_seed(0))]
    return max(difference(original(*args, **kwargs), fast(*args, **kwargs)) for args, kwargs in trials)


@torch.no_grad()
def _choose_products(model: nn.Module, example: Example) -> tuple[nn.Module, tuple[MixChoice, ...]]:
    """`model`, its ordinary stages in the form that runs fastest, and how the products of that form were chosen."""
    stages = [(name, stage) for name, stage in model.named_modules() if isinstance(stage, OrdinaryStage)]
    seen = _recorded(model, [module for _, stage in stages for module in (stage, *stage.mixes)], example)
    choices: list[MixChoice] = []
    for name, stage in stages:
        if stage not in seen:
            continue
        batch = len(seen[stage])
        pieces = [*(n for n in PIECES if n < batch), batch]
        made, mixes = [], nn.ModuleList()
        for key, mix in stage.mixes.named_children():
            choice, product = _product(f"{name}.mixes.{key}".lstrip("."), mix, seen[mix])
            made += [] if choice is None else [choice]
            mixes.append(product)
        rows = seen[stage.mixes[-1]].shape[1]
        fastest = _fastest([stage, *(TableStage(stage.nodes, mixes, rows, n) for n in pieces)], seen[stage])
        if fastest is not stage:
            model = _replaced(model, name, fastest.eval())
            choices += made
    return model, tuple(choices)


def _recorded(model: nn.Module, modules: Sequence[nn.Module], example: Example) -> dict[nn.Module, Tensor]:
    """The input of each of the modules that runs on the example, as it is before any hook of the module's own."""
    seen: dict[nn.Module, Tensor] = {}
    handles = [
        module.register_forward_pre_hook(lambda module, args: seen.update({module: args[0]}), prepend=True)
        for module in modules
    ]
    try:
        example.run(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _product(name: str, mix: nn.Module, maps: Tensor) -> tuple[MixChoice | None, nn.Module]:
    """The faster product for an ordinary convolution on these maps; what is no such convolution stays."""
    if type(mix) is not nn.Conv2d:
        return None, mix
    matrix, bias = _matrix(mix, maps.shape[1])
    dense, sparse = DenseMix(matrix, bias), SparseMix(matrix, bias)
    some = maps[: PIECES[1]]
    table = some.transpose(0, 1).reshape(some.shape[1], -1)
    slow, quick = _times([dense, sparse], table)
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
