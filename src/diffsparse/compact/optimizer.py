"""An optimiser for the compact model that goes on where the one of the gated model stopped."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from diffsparse.compact.apply import slice_tensor
from diffsparse.compact.compact import Compacted
from diffsparse.compact.plan import TensorSlice
from diffsparse.errors import SparsityError
from diffsparse.nn import SparseBatchNorm

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)


def slice_optimizer(optimizer: AnyOptimizer, model: nn.Module, small: Compacted[Any]) -> AnyOptimizer:
    """A new optimiser of the same class over the compact model, with its state (momentum, moments) sliced alike.

    Args:
        optimizer: the optimiser of `model`; it is left as it is.
        model: the model that was compacted.
        small: what `compact(model, ...)` returned.

    Each parameter keeps its group and options. A batch norm that was sparse starts with fresh state, because its scale
    is trained directly from now on: its scale takes the group of the gate, and a bias that folding added takes the
    group of its layer's weight.

    Example:
        >>> import diffsparse as ds
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
        >>> optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
        >>> small = ds.compact(model, torch.randn(2, 4))
        >>> type(slice_optimizer(optimizer, model, small)).__name__
        'SGD'
    """
    old = dict(model.named_parameters(remove_duplicate=False))
    sparse = {name for name, module in model.named_modules() if isinstance(module, SparseBatchNorm)}
    home = {id(p): position for position, group in enumerate(optimizer.param_groups) for p in group["params"]}
    groups: list[dict[str, Any]] = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": []}
        for group in optimizer.param_groups
    ]
    states: list[tuple[nn.Parameter, dict[str, Any]]] = []
    for name, parameter in small.model.named_parameters():
        source = _source(name, old, sparse)
        if source is None or id(old[source]) not in home:
            continue
        groups[home[id(old[source])]]["params"].append(parameter)
        if source == name and name.rpartition(".")[0] not in sparse:
            kept = small.plan.tensors.get(name, TensorSlice())
            states.append((parameter, _sliced_state(optimizer.state.get(old[name], {}), old[name], parameter, kept)))
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise SparsityError("the optimiser holds no parameter of the model that was compacted")
    new = type(optimizer)(groups, **_known_defaults(optimizer))
    for parameter, state in states:
        if state:
            new.state[parameter] = state
    return new


def _source(name: str, old: Mapping[str, Tensor], sparse: set[str]) -> str | None:
    """The parameter of the gated model whose group the compact model's parameter `name` takes."""
    owner, _, key = name.rpartition(".")
    if owner in sparse and key == "weight":
        return f"{owner}.gate.alpha"
    if name in old:
        return name
    weight = f"{owner}.weight" if owner else "weight"
    return weight if key == "bias" and weight in old else None


def _sliced_state(state: dict[str, Any], old: Tensor, new: Tensor, kept: TensorSlice) -> dict[str, Any]:
    sliced: dict[str, Any] = {}
    for key, entry in state.items():
        if isinstance(entry, Tensor):
            same_shape = entry.shape == old.shape
            entry = slice_tensor(entry, kept).clone() if same_shape else entry.clone()
            if same_shape and entry.shape != new.shape:
                raise SparsityError(f"state '{key}' of shape {tuple(entry.shape)} does not fit {tuple(new.shape)}")
        sliced[key] = entry
    return sliced


def _known_defaults(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Defaults that the constructor of the optimiser's class takes; some classes keep more than they take."""
    taken = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in taken}
