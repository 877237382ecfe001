"""How the average of a model becomes small as the model did."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.averaging.contents import Contents, shapes
from diffsparse.compaction import Compacted, apply_plan
from diffsparse.compaction.actions import Action, PassThrough, Remove, Slice
from diffsparse.compaction.materialise import parameter_sources
from diffsparse.module_tree import lies_in, modules_by_name, tensors_by_name
from diffsparse.nn import GatedLayer
from diffsparse.nn.gated_layer import GATES


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
    return changed | _shared_gates_after(contents, means, small, left)


def _shared_gates_after(
    contents: Contents, means: Mapping[str, Tensor], small: Compacted[Any], left: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The same for gates that layers multiply their weights with: an entry is dead if its block of weights is gone."""
    names = {module: name for name, module in modules_by_name(contents.model).items()}
    changed: dict[str, Tensor] = {}
    for layer, name in names.items():
        if not isinstance(layer, GatedLayer):
            continue
        weight = _spread(left[key].detach(), key, small) if (key := f"{name}.weight".lstrip(".")) in left else None
        for side, part in ((side, layer.part(side)) for side in GATES):
            gate = "" if part is None else names.get(part.gate, "")
            if part is None or gate not in means:
                continue
            entries = changed.setdefault(gate, means[gate].clone())[part.start : part.stop]
            if weight is None:
                entries.zero_()
                continue
            dim = layer.input_dim if side == "inputs" else None
            now, stored = (_block_norms(held, dim, len(entries)) for held in (weight, layer._parameters["weight"]))
            value = (now / stored).nan_to_num(1.0).to(entries)
            torch.where((now == 0) | (entries == 0), value * (now != 0), entries, out=entries)
    return changed


def _block_norms(weight: Any, dim: int | None, blocks: int) -> Tensor:
    """Norms of blocks of a weight along `dim`, or of all of it."""
    rows: Tensor = weight.detach() if dim is None else weight.detach().movedim(dim, 0)
    norms: Tensor = rows.reshape(blocks, -1).square().sum(1).sqrt()
    return norms


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


def in_the_form_of(made: Compacted[Any], mine: Compacted[Any]) -> Compacted[Any] | None:
    """`mine` with the layers of `made`, a model of the same architecture; None if it was made small in another way.

    Where one number takes the place of dead channels, it is that of `made`: it has no gradient and does not move.
    """
    layers = {name: _with_number_of(made.plan.layers.get(name), action) for name, action in mine.plan.layers.items()}
    if (mine.plan.tensors, layers) != (made.plan.tensors, made.plan.layers):
        return None
    if layers != mine.plan.layers:
        plan = replace(mine.plan, layers=layers)
        model = apply_plan(mine.original, plan)
        model.load_state_dict(mine.model.state_dict())
        mine = replace(mine, model=model, plan=plan)
    return mine if _shapes_of(mine.model) == _shapes_of(made.model) else None


def _with_number_of(made: Action | None, mine: Action) -> Action:
    return replace(mine, number=made.number) if isinstance(made, Slice) and isinstance(mine, Slice) else mine


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return shapes(tensors_by_name(modules_by_name(model)))
