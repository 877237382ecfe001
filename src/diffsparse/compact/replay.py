"""A plan applied to a fresh instance of the model it was made for."""

from typing import TypeVar, cast

from torch import nn

from diffsparse.compact import apply
from diffsparse.compact.bake import bake
from diffsparse.compact.plan import Plan

Model = TypeVar("Model", bound=nn.Module)


def apply_plan(model: Model, plan: Plan) -> Model:
    """A copy of `model` with the architecture that `plan` describes, its own weights sliced alike.

    Args:
        model: a fresh instance of the class that was compacted, gated or not; it is left as it is.
        plan: the plan of a `Compacted`, or one read by `Plan.from_json`.

    Biases that folding added, fills and constants start at zero: they are numbers, which a saved model holds, not part
    of the plan.

    Example:
        >>> import torch, diffsparse as ds
        >>> make = lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> trained = make()
        >>> _ = trained[1].weight.data[:6].zero_()
        >>> plan = ds.compact(trained, torch.randn(2, 4)).plan
        >>> apply_plan(make(), plan)[0]
        Linear(in_features=4, out_features=2, bias=True)
    """
    return cast(Model, apply.apply_plan(bake(model), plan))
