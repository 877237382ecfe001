"""A plan applied to a model: tensors sliced, actions done, attributes corrected, new tensors written."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from diffsparse.compaction.adaptors import ADDED, FILL
from diffsparse.compaction.bake import baked
from diffsparse.compaction.edit import ModelEdit
from diffsparse.compaction.materialise import check_model, materialise
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.rules import true_attributes
from diffsparse.compaction.tensor_slice import slice_tensor
from diffsparse.errors import SparsityError
from diffsparse.module_tree import lies_in, modules_by_name, tensors_by_name

Model = TypeVar("Model", bound=nn.Module)

PLAN = "_diffsparse_plan"
"""Attribute of a compact model: how it was made."""


def apply_plan(model: Model, plan: Plan) -> Model:
    """A copy of `model`, sliced to the architecture that `plan` describes.

    Args:
        model: a fresh instance of the class that was compacted, gated or not; it is left as it is.
        plan: the plan of a `Compacted`, or one read by `Plan.from_json`.

    Biases that folding added, fills and constants start at zero: a saved model holds their numbers, the plan does not.

    Raises:
        SparsityError: the plan was made for a model with other layers, or with layers of other widths.

    Example:
        >>> import torch, diffsparse as ds
        >>> make = lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> trained = make()
        >>> _ = trained[1].weight.data[:6].zero_()
        >>> plan = ds.compact(trained, torch.randn(2, 4)).plan
        >>> apply_plan(make(), plan)[0]
        Linear(in_features=4, out_features=2, bias=True)
    """
    if not isinstance(plan, Plan):
        raise SparsityError(f"plan must be a Plan, read by Plan.from_json or from a Compacted; got {plan!r:.50}")
    small = materialise(check_model(model))
    for step in (*plan.earlier, plan):
        _check_fits(small, step)
        try:
            small = shrink_in_place(small, step)
        except SparsityError:
            raise
        except (RuntimeError, LookupError, AttributeError, TypeError, ValueError, AssertionError) as error:
            raise SparsityError(f"the plan cannot be applied to {type(model).__name__}: {error}") from error
    return cast(Model, small)


def plan_of(model: nn.Module) -> Plan | None:
    """The plan that made a compact model, or a model with compact ones in it; None for any other."""
    own: Plan | None = vars(model).get(PLAN)
    if own is not None:
        return own
    held = [(name, plan) for name, module in modules_by_name(model).items() if (plan := vars(module).get(PLAN))]
    steps = [step.within(name) for name, plan in held for step in (*plan.earlier, replace(plan, earlier=()))]
    return replace(steps[-1], earlier=tuple(steps[:-1])) if steps else None


def with_earlier(plan: Plan, model: nn.Module) -> Plan:
    """`plan` for `model`, preceded by the plans that made `model` itself, if it is compact already."""
    before = plan_of(model)
    return plan if before is None else replace(plan, earlier=(*before.earlier, replace(before, earlier=())))


def _check_fits(model: nn.Module, plan: Plan) -> None:
    modules, kind = modules_by_name(model), type(model).__name__
    tensors = tensors_by_name(modules)
    for name in (*plan.layers, *plan.baked):
        if name not in modules:
            raise SparsityError(f"the plan changes '{name}', which {kind} does not have")
    for name, kept in plan.tensors.items():
        if lies_in(name, plan.baked):
            continue
        if name not in tensors:
            raise SparsityError(f"the plan slices '{name}', which {kind} does not have")
        shape = tuple(tensors[name].shape)
        if kept.shape is not None and shape != tuple(kept.shape):
            made_for = f"the plan was made for '{name}' of shape {tuple(kept.shape)}"
            raise SparsityError(f"{made_for}, which has shape {shape} in this {kind}")
        for dim, chosen in kept.dims.items():
            # indices rise, so the last is the largest
            if chosen and chosen[-1] >= (shape[dim] if dim < len(shape) else 0):
                entry = f"entry {chosen[-1]} of dimension {dim}"
                raise SparsityError(f"the plan keeps {entry} of '{name}', which has shape {shape}")


@torch.no_grad()
def shrink_in_place(model: nn.Module, plan: Plan) -> nn.Module:
    """Apply a plan to `model` itself; it must fit, and gates must be evaluated already."""
    edit = ModelEdit(model)
    if plan.baked:
        for name, shape in plan.baked.items():
            edit.replace(name, baked(edit.modules[name], shape, edit.sample(name)))
        edit = ModelEdit(model)
    tensors = tensors_by_name(edit.modules)
    for name, kept in plan.tensors.items():
        # in place, so that tied parameters stay tied
        tensors[name].data = slice_tensor(tensors[name].data, kept, edit.index)
    for name, action in plan.layers.items():
        action.apply(edit, name)
    for module in edit.modules.values():
        vars(module).update(true_attributes(module))
    made_by = with_earlier(plan, model) if not plan.earlier else plan
    for module in edit.modules.values():
        vars(module).pop(PLAN, None)
    vars(model)[PLAN] = made_by
    return model


@dataclass
class PlanTensors:
    """Contents of the tensors that a plan creates, by the name of the layer."""

    weight: dict[str, Tensor] = field(default_factory=dict)
    """What to add to the weight."""
    bias: dict[str, Tensor] = field(default_factory=dict)
    """What to add to the bias."""
    in_proj_bias: dict[str, Tensor] = field(default_factory=dict)
    """What to add to the bias of queries, keys and values."""
    fill: dict[str, Tensor] = field(default_factory=dict)
    """What an expand puts between the outputs."""
    added: dict[str, Tensor] = field(default_factory=dict)
    """The map that is added to the outputs."""
    constant: dict[str, Tensor] = field(default_factory=dict)
    """What replaces the layer."""
    affine: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Scale and shift of the batch norm that the layer takes over."""
    scale: dict[str, tuple[Tensor, int]] = field(default_factory=dict)
    """What the outputs are multiplied by, and the dimension of the weight along which they lie."""


@torch.no_grad()
def write_plan_tensors(model: nn.Module, contents: PlanTensors) -> None:
    """Write these contents into a model that the plan was applied to."""
    for role in ("weight", "bias", "in_proj_bias"):
        for name, extra in getattr(contents, role).items():
            tensor = model.get_submodule(name).get_parameter(role)
            tensor.copy_(tensor.double() + extra.to(tensor.device))
    for name, (factors, dim) in contents.scale.items():
        module: Any = model.get_submodule(name)
        factors = factors.to(module.weight.device)
        module.weight.copy_(
            module.weight.double() * factors.view([-1 if d == dim else 1 for d in range(module.weight.dim())])
        )
        if module.bias is not None:
            module.bias.copy_(module.bias.double() * factors)
    for name, affine in contents.affine.items():
        layer: Any = model.get_submodule(name)
        scale, shift = (tensor.to(layer.weight.device) for tensor in affine)
        layer.weight.copy_(layer.weight.double() * scale.view(-1, *[1] * (layer.weight.dim() - 1)))
        layer.bias.copy_(layer.bias.double() * scale + shift)
    for key, tables in ((FILL, contents.fill), (ADDED, contents.added)):
        for name, table in tables.items():
            model.get_submodule(name).get_buffer(key).copy_(table)
    for name, constant in contents.constant.items():
        (buffer,) = model.get_submodule(name).buffers()
        buffer.copy_(constant)
