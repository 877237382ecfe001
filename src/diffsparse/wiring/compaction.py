"""From a wired network to the one that computes the same with its live nodes and edges only."""

import copy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import torch
from torch import nn

from diffsparse.compact import Compacted, compact
from diffsparse.compact.bake import check_model
from diffsparse.compact.verify import default_tolerance, difference, random_like
from diffsparse.errors import SparsityError
from diffsparse.measure.example import Example
from diffsparse.wiring.products import MixChoice, choose_products
from diffsparse.wiring.stage import WiredStage

Model = TypeVar("Model", bound=nn.Module)


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
    fast, choices = choose_products(copy.deepcopy(compacted.model).eval(), example)
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
