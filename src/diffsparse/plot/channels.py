"""What each layer of a network still reads, channel by channel."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityError
from diffsparse.gates import named_gates
from diffsparse.gating.zeros import gate_values
from diffsparse.module_tree import HoldsModel, modules_by_name
from diffsparse.plot.given import compacted
from diffsparse.selection import Selection


def norm_scales(model: nn.Module) -> dict[str, Tensor]:
    """The scales of all ordinary batch norms, by name; raises if there are none."""
    norms = {name: module for name, module in modules_by_name(model).items() if isinstance(module, _BatchNorm)}
    scales = {name: norm.weight.detach() for name, norm in norms.items() if norm.weight is not None}
    if not scales:
        raise SparsityError(f"{type(model).__name__} has neither gates nor batch norms with scales")
    return scales


def strengths(model: nn.Module | HoldsModel, only: Selection | None = None) -> dict[str, Tensor]:
    """By the name of each gated layer, how strong each channel is: |a|, or 1 and 0 where only the plan tells.

    Args:
        model: a model with gates, or with zeros among the scales of its batch norms; or what `compact` returned, or a
            budget that was reached.
        only: the gates to look at, chosen as for a `Penalty`.
    """
    small: Any = None if isinstance(model, nn.Module) else compacted(model, also="a model, ")
    whole = model if isinstance(model, nn.Module) else small.original
    if any(True for _ in named_gates(whole)):
        return {name: a.abs().cpu() for name, a in gate_values(whole, only).items() if a.dim() == 1}
    if only is not None:
        raise SparsityError(f"only chooses gates, and {type(whole).__name__} has none")
    scales = norm_scales(whole)
    if any(values.is_meta for values in scales.values()):
        return {name: _kept(name, len(values), small) for name, values in scales.items()}
    return {name: values.abs().cpu() for name, values in scales.items()}


def _kept(name: str, width: int, small: Any) -> Tensor:
    """1 for each channel of the batch norm `name` that is left after all plans of `small`, 0 for the others."""
    alive = torch.arange(width)
    for plan in (*small.plan.earlier, small.plan):
        tensors: Mapping[str, Any] = plan.tensors
        if any(action.drops_module and f"{name}.".startswith(f"{gone}.") for gone, action in plan.layers.items()):
            return torch.zeros(width)
        if (kept := tensors.get(f"{name}.weight")) is not None and 0 in kept.dims:
            alive = alive[kept.dims[0]]
    return torch.zeros(width).index_fill(0, alive, 1.0)
