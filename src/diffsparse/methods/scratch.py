"""The small architecture of a compact file, trained from a fresh start."""

import math
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
from diffsparse.methods.method import Method, register_method
from diffsparse.methods.settings import Sparsifying


@dataclass(frozen=True, kw_only=True)
class Scratch(Method):
    r"""Is it the weights that a sparse network inherits, or its architecture? This trains the architecture alone.

    The plan in the file slices a fresh model; nothing learned is kept. Biases that compaction added start at zero and
    are trained. Fills and constants, where a layer's output was the same for every input, are zero and stay zero.

    A weight that lost inputs is multiplied by :math:`\sqrt{n_{before} / n_{after}}`, n being the inputs of one output.
    Each output then has the variance, and each filter on average the norm, that the model's own initialisation gave it
    at full width, whatever its rule. Grouped convolutions with groups of different sizes stay as they were sliced.
    """

    like: Path
    """A compact file of the same class."""

    options = frozenset({"like"})

    @classmethod
    def check(cls, settings: Sparsifying) -> None:
        super().check(settings)
        if settings.like is None:
            raise SparsityError("method scratch needs like=FILE, the compact file whose architecture it trains")

    def plan(self) -> Plan:
        """The plan in the file; raises if that is not of a compact model, or of one folded for inference."""
        header = read_header(self.like)
        if header.plan is None:
            raise SparsityError(f"'{self.like}' holds a {header.kind} model; scratch needs the file of a compact one")
        if any(action.for_inference for action in header.plan.layers.values()):
            raise SparsityError(f"the batch norms of '{self.like}' are folded, for inference; compact without folding")
        return header.plan

    def prepare(self, model: nn.Module) -> nn.Module:
        plan = self.plan()
        try:
            small = apply_plan(model, plan)
        except SparsityError as error:
            raise SparsityError(f"'{self.like}' does not fit this {type(model).__name__}: {error}") from error
        _restore_variance(check_model(model), small)
        return small

    def compacted(self, model: nn.Module, fresh: nn.Module, example: Tensor) -> Compacted[nn.Module]:
        """The trained model as it is, with the plan that it was built by, so that it can be saved."""
        example_inputs = Example.of(example)
        return Compacted(model=model, plan=self.plan(), max_difference=None, original=fresh, example=example_inputs)


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
