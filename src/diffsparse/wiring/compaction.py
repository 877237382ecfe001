"""From a wired network to the one that computes the same with its live nodes and edges only."""

import copy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from torch import nn

from diffsparse.compaction import Compacted, compact
from diffsparse.compaction.materialise import check_model
from diffsparse.compaction.verify import Trials, default_tolerance, run_on_copies
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.undisturbed import undisturbed
from diffsparse.wiring.products import MixChoice, choose_products
from diffsparse.wiring.stage import OrdinaryStage, WiredStage

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class CompactWiring(Generic[Model]):
    """A wired network for inference; prints as the choices made for its edges."""

    model: Model
    """Without gates and dead nodes, batch norms folded, edges dense or sparse as measured; for inference only."""
    compacted: Compacted[Model] = field(repr=False)
    """The compact network before products were chosen: ordinary layers, which can be saved, exported or trained on."""
    max_difference: float
    """Largest difference of `model` from the gated network that was seen, relative to the largest output."""
    choices: tuple[MixChoice, ...]
    """For each group of nodes with edges into it. Those of stages that stayed as they were are left out."""

    def __str__(self) -> str:
        lines = [str(choice) for choice in self.choices]
        return "\n".join([*lines, f"largest relative difference {self.max_difference:.2g}"])


def compact_wiring(model: Model, example_inputs: Any, *, tolerance: float | None = None) -> CompactWiring[Model]:
    """Remove dead nodes, then run the edges that are left dense or sparse, whichever is faster on the example.

    Dead nodes leave with their filters and batch norms, by `diffsparse.compaction`. A node without incoming but with
    outgoing edges sends a constant that varies at the border of the map: it stays, and so the result is exact for
    every image size. Only where a whole group has become constant its map is stored, for images of the example's size;
    others raise. Give an example of the batch and image size that the network is to be fast for.

    Args:
        model: a network with `WiredStage`s in it, or what `diffsparse.compaction` made of one; it is left as it is.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        tolerance: largest relative difference to accept; by default what rounding does in the model's dtype.

    Raises:
        SparsityError: there is no wired stage, the model does not run, or the result would differ from it.

    Example:
        >>> import torch
        >>> stage = WiredStage(4, 8, groups=2).eval()
        >>> small = compact_wiring(stage, torch.randn(2, 4, 6, 6))
        >>> x = torch.randn(5, 4, 7, 7)
        >>> torch.allclose(small.model(x), stage(x), atol=1e-5)
        True
    """
    model = check_model(model)
    if not any(isinstance(module, WiredStage | OrdinaryStage) for module in model.modules()):
        raise SparsityError(f"{type(model).__name__} has no WiredStage; use diffsparse.compaction")
    compacted = compact(model, example_inputs, tolerance=tolerance, fold=True)
    fast, choices = choose_products(copy.deepcopy(compacted.model).eval(), compacted.example)
    limit = default_tolerance(model) if tolerance is None else tolerance
    apart = _difference(model, fast, compacted.example, limit, any_size=not compacted.plan.needs_size)
    return CompactWiring(model=cast(Model, fast), compacted=compacted, max_difference=apart, choices=choices)


def _difference(model: nn.Module, fast: nn.Module, example: Example, tolerance: float, *, any_size: bool) -> float:
    """The largest one from the gated network, on the example and elsewhere; raises if it is too large."""
    given = (example.args, example.kwargs)
    with undisturbed(model, device=example.device):
        trials = Trials(*given, run_on_copies(model, given), tolerance)
        trials.note_answers(model, any_size=any_size)
    return trials.check(fast, any_size=any_size)
