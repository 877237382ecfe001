"""A small architecture, that of a compact file or a uniformly narrower one, trained from a fresh start."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from diffsparse.checkpoint import read_header
from diffsparse.compaction import Compacted, Plan, apply_plan
from diffsparse.compaction.materialise import check_model
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.measuring import Measurement, measure
from diffsparse.methods.costs import CostLimits, asked_costs
from diffsparse.methods.method import COSTS, Method, Sample, register_method
from diffsparse.models.factory import with_multiplier

FINEST = 1000
"""Steps of the width multiplier up to that of the whole network."""


@dataclass(frozen=True, kw_only=True)
class Scratch(Method):
    r"""Is it the weights that a sparse network inherits, or its architecture? This trains the architecture alone.

    With a file, its plan slices a fresh model; nothing learned is kept. Biases that compaction added start at zero and
    are trained. Fills and constants, where a layer's output was the same for every input, are zero and stay zero.

    A weight that lost inputs is multiplied by :math:`\sqrt{n_{before} / n_{after}}`, n being the inputs of one output.
    Each output then has the variance, and each filter on average the norm, that the model's own initialisation gave it
    at full width, whatever its rule. Grouped convolutions with groups of different sizes stay as they were sliced.

    With a cost, it trains the network of the same family whose width multiplier meets it, never above it.
    """

    like: Path | None = None
    """A compact file of the same class,"""
    macs: float | None = None
    """or what the network may cost: shares of the whole one up to 1, numbers above."""
    params: float | None = None
    bytes: float | None = None

    options = COSTS | {"like"}
    instead_of_cost = frozenset({"like"})

    def network(self, name: str, build: Callable[[str], nn.Module], example: Tensor) -> str:
        """The widest network of the family of `name` that is within the costs."""
        if self.like is not None:
            return name
        if ":" in name or with_multiplier(name, 1.0) is None:
            kind = f"{name} has no width multiplier, so there is no narrower network like it"
            raise SparsityError(f"{kind}; give like=FILE, the compact file whose architecture scratch trains")
        limits = CostLimits(asked_costs(self), measure(build(name), example, latency=False))
        fitting, below, above = "", 0, FINEST + 1
        while above - below > 1:
            middle = (below + above) // 2
            narrower = with_multiplier(name, middle / FINEST)
            assert narrower is not None
            cost = _cost(narrower, build, example)
            if cost is not None and limits.excess(cost) > 1:
                above = middle
            else:
                below, fitting = middle, fitting if cost is None else narrower
        if not fitting:
            raise SparsityError(f"{limits.words()} is out of reach: the narrowest {name} that there is costs more")
        return fitting

    def plan(self) -> Plan:
        """The plan in the file; raises if that is not of a compact model, or of one folded for inference."""
        assert self.like is not None
        header = read_header(self.like)
        if header.plan is None:
            raise SparsityError(f"'{self.like}' holds a {header.kind} model; scratch needs the file of a compact one")
        if any(action.for_inference for action in header.plan.layers.values()):
            raise SparsityError(f"the batch norms of '{self.like}' are folded, for inference; compact without folding")
        return header.plan

    def prepare(self, model: nn.Module, sample: Sample | None = None) -> nn.Module:
        if self.like is None:
            return model
        plan = self.plan()
        try:
            small = apply_plan(model, plan)
        except SparsityError as error:
            raise SparsityError(f"'{self.like}' does not fit this {type(model).__name__}: {error}") from error
        _restore_variance(check_model(model), small)
        return small

    def compacted(self, model: nn.Module, fresh: nn.Module, example: Tensor) -> Compacted[nn.Module]:
        """The trained model as it is, with the plan that it was built by, so that it can be saved."""
        if self.like is None:
            return super().compacted(model, fresh, example)
        example_inputs = Example.of(example)
        return Compacted(model=model, plan=self.plan(), max_difference=None, original=fresh, example=example_inputs)


def _cost(name: str, build: Callable[[str], nn.Module], example: Tensor) -> Measurement | None:
    """What the network costs; None if it is too narrow to exist."""
    try:
        return measure(build(name), example, latency=False)
    except SparsityError:
        return None


@torch.no_grad()
def _restore_variance(wide: nn.Module, small: nn.Module) -> None:
    layers = dict(wide.named_modules())
    # by parameters, which come once even if several layers share them
    for name, parameter in small.named_parameters():
        owner, _, key = name.rpartition(".")
        before, after = layers.get(owner), small.get_submodule(owner)
        if key == "weight" and isinstance(before, _ConvNd | nn.Linear) and type(after) is type(before):
            parameter.mul_(math.sqrt(_inputs(before) / _inputs(after)))


def _inputs(layer: nn.Module) -> float:
    """How many inputs one output of a layer sums."""
    assert isinstance(layer, _ConvNd | nn.Linear)
    return layer.weight.numel() / (layer.out_channels if isinstance(layer, _ConvNd) else layer.out_features)


register_method("scratch", Scratch)
