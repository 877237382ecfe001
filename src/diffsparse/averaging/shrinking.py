"""How the average of a model becomes small as the model did."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.averaging.contents import Contents, shapes
from diffsparse.compaction import Compacted
from diffsparse.compaction.actions import PassThrough, Remove
from diffsparse.compaction.materialise import parameter_sources
from diffsparse.module_tree import lies_in, modules_by_name, tensors_by_name


def gates_after(contents: Contents, means: Mapping[str, Tensor], small: Compacted[Any]) -> dict[str, Tensor]:
    """The averaged values of gates, with zeros where the model had them when it became `small`.

    The last update may have been before that: entries have died, or come to life, which then have the model's values.
    """
    left = tensors_by_name(modules_by_name(small.model))
    gone = {name for name, action in small.plan.layers.items() if isinstance(action, PassThrough | Remove)}
    changed: dict[str, Tensor] = {}
    for name, source in parameter_sources(contents.model).items():
        gate = source.name.rpartition(".")[0]
        if gate not in contents.gates:
            continue
        if name in left:
            value = _spread(left[name].detach(), name, small)
            if value is not None and value.numel() == means[gate].numel():
                value = value.view_as(means[gate]).to(means[gate])
                changed[gate] = torch.where((value == 0) | (means[gate] == 0), value, means[gate])
        elif lies_in(name, gone):
            changed[gate] = torch.zeros_like(means[gate])
    return changed


def _spread(part: Tensor, name: str, small: Compacted[Any]) -> Tensor | None:
    """What is left of a tensor in its old shape, zero elsewhere; None if the old shape is not known."""
    kept = small.plan.tensors.get(name)
    if kept is None:
        return part
    if kept.shape is None or kept.columns is not None:
        return None
    chosen = [torch.tensor(kept.dims.get(dim, list(range(size)))) for dim, size in enumerate(kept.shape)]
    whole = part.new_zeros(kept.shape)
    whole[torch.meshgrid(*chosen, indexing="ij")] = part
    return whole


def same_cut(one: Compacted[Any], other: Compacted[Any]) -> bool:
    """Whether two models of one architecture were made small in the same way."""
    plans = (one.plan.tensors, one.plan.layers) == (other.plan.tensors, other.plan.layers)
    return plans and _shapes_of(one.model) == _shapes_of(other.model)


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return shapes(tensors_by_name(modules_by_name(model)))
