"""A plan applied to a model: tensors sliced, actions done, attributes made true."""

from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from diffsparse.compaction.actions import ModelEdit
from diffsparse.compaction.materialise import check_model, materialise
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.rules import true_attributes
from diffsparse.compaction.tensor_slice import slice_tensor
from diffsparse.errors import SparsityError
from diffsparse.module_tree import modules_by_name

Model = TypeVar("Model", bound=nn.Module)

COMPACT = "_made_by_compact"
"""Attribute that marks a compact model."""


def apply_plan(model: Model, plan: Plan) -> Model:
    """A copy of `model` with the architecture that `plan` describes, its own weights sliced alike.

    Args:
        model: a fresh instance of the class that was compacted, gated or not; it is left as it is.
        plan: the plan of a `Compacted`, or one read by `Plan.from_json`.

    Biases that folding added, fills and constants start at zero: they are numbers, which a saved model holds, not part
    of the plan.

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
    _check_fits(small, plan)
    try:
        return cast(Model, shrink_in_place(small, plan))
    except SparsityError:
        raise
    except (RuntimeError, LookupError, AttributeError, TypeError, ValueError, AssertionError) as error:
        raise SparsityError(f"the plan cannot be applied to {type(model).__name__}: {error}") from error


def _check_fits(model: nn.Module, plan: Plan) -> None:
    modules, kind = modules_by_name(model), type(model).__name__
    for name in plan.layers:
        if name not in modules:
            raise SparsityError(f"the plan changes '{name}', which {kind} does not have")
    for name, kept in plan.tensors.items():
        tensor = _held_tensor(modules, name)
        if tensor is None:
            raise SparsityError(f"the plan slices '{name}', which {kind} does not have")
        if kept.shape is not None and list(tensor.shape) != kept.shape:
            raise SparsityError(
                f"the plan was made for '{name}' of shape {tuple(kept.shape)}, "
                f"which has shape {tuple(tensor.shape)} in this {kind}"
            )
        for dim, chosen in kept.dims.items():
            size = tensor.shape[dim] if dim < tensor.dim() else 0
            # rising, so that the last is the largest
            if chosen and chosen[-1] >= size:
                raise SparsityError(
                    f"the plan keeps entry {chosen[-1]} of dimension {dim} of '{name}', "
                    f"which has shape {tuple(tensor.shape)}"
                )


@torch.no_grad()
def shrink_in_place(model: nn.Module, plan: Plan) -> nn.Module:
    """Make `model`, which the plan fits and whose sparse layers are already ordinary ones, as small as it says."""
    edit = ModelEdit(model)
    for name, kept in plan.tensors.items():
        tensor = _held_tensor(edit.modules, name)
        if tensor is not None:
            # not a tensor in its place: whoever else holds it, ties stay
            tensor.data = slice_tensor(tensor.data, kept, edit.index)
    for name, action in plan.layers.items():
        action.apply(edit, name)
    for module in edit.modules.values():
        vars(module).update(true_attributes(module))
    vars(model)[COMPACT] = True
    return model


def _held_tensor(modules: dict[str, nn.Module], name: str) -> Tensor | None:
    """The parameter or buffer of this name, if there is one."""
    owner, _, key = name.rpartition(".")
    if owner not in modules:
        return None
    found = modules[owner]._parameters.get(key)
    return modules[owner]._buffers.get(key) if found is None else found
