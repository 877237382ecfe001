"""Numbers that go with a plan: folded biases, fills, constants."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from diffsparse.compaction.adaptors import FILL, Constant, ConstantMap


@dataclass
class PlanTensors:
    """Tensors that a plan leaves room for, by the name of the layer."""

    bias: dict[str, Tensor] = field(default_factory=dict)
    """What to add to the bias."""
    fill: dict[str, Tensor] = field(default_factory=dict)
    """What an expand puts between the outputs."""
    constant: dict[str, Tensor] = field(default_factory=dict)
    """What stands for the layer."""
    affine: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Scale and shift of the batch norm that the layer takes over."""


@torch.no_grad()
def write_plan_tensors(model: nn.Module, numbers: PlanTensors) -> None:
    """Write them into a model that the plan was applied to."""
    for name, extra in numbers.bias.items():
        bias = model.get_submodule(name).bias
        assert isinstance(bias, Tensor)
        bias.copy_(bias.double() + extra.to(bias.device))
    for name, (scale, shift) in numbers.affine.items():
        _take_over(model.get_submodule(name), scale, shift)
    for name, fill in numbers.fill.items():
        model.get_submodule(name).get_buffer(FILL).copy_(fill)
    for name, constant in numbers.constant.items():
        stand_in = model.get_submodule(name)
        assert isinstance(stand_in, Constant | ConstantMap)
        stand_in.store(constant)


def _take_over(layer: nn.Module, scale: Tensor, shift: Tensor) -> None:
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    scale, shift = scale.to(weight.device), shift.to(weight.device)
    weight.copy_(weight.double() * scale.view(-1, *[1] * (weight.dim() - 1)))
    bias.copy_(bias.double() * scale + shift)
