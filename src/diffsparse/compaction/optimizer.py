"""An optimiser for the compact model that continues where the gated model's optimiser stopped."""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from diffsparse.compaction.actions import Slice
from diffsparse.compaction.materialise import check_model, parameter_sources
from diffsparse.compaction.pipeline import Compacted
from diffsparse.compaction.tensor_slice import TensorSlice, slice_tensor
from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.gates import Source
from diffsparse.gating import warn_of_idle_gates
from diffsparse.module_tree import lies_in

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)


def slice_optimizer(optimizer: AnyOptimizer, model: nn.Module, small: Compacted[Any]) -> AnyOptimizer:
    """A new optimiser of the same class over the compact model, with its state (momentum, moments) sliced alike.

    Args:
        optimizer: the optimiser of `model`; it is left as it is.
        model: the model that was compacted.
        small: what `compact(model, ...)` returned.

    Each parameter keeps its group and options. What came from a gate takes the group of the gate and starts with fresh
    state, because it is trained directly from now on; so does what a baked layer or a rescaled one holds. A bias that
    folding added takes the group of its layer's weight. A parameter whose state has no entry for each of its numbers,
    as in Adafactor, starts fresh with a warning. Names of parameters that a group holds become those of the compact
    model.

    Raises:
        SparsityError: the optimiser holds no parameter of `model`, or is LBFGS, whose history is of all parameters at
            once; or a trained parameter of the compact model comes from none of `model`.

    Example:
        >>> import diffsparse as ds
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
        >>> optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
        >>> small = ds.compact(model, torch.randn(2, 4))
        >>> type(slice_optimizer(optimizer, model, small)).__name__
        'SGD'
    """
    _check(optimizer, small)
    groups, states = sliced_groups(optimizer, check_model(model), small)
    warn_of_idle_gates(model, optimizer)
    # some classes keep more defaults than their constructor takes
    taken = inspect.signature(type(optimizer).__init__).parameters
    options = {key: value for key, value in optimizer.defaults.items() if key in taken}
    if not any(group["params"] for group in groups):
        raise SparsityError("nothing is left of the parameters that the optimiser holds")
    new = type(optimizer)([group for group in groups if group["params"]], **options)
    new.state.update(states)
    return new


def slice_optimizers_in_place(
    optimizers: Iterable[torch.optim.Optimizer], model: nn.Module, small: Compacted[Any], *, gates_stay: bool = False
) -> None:
    """Give optimisers the parameters of the compact model and their state; a group that loses all of its own stays.

    If one of them cannot be sliced, all are left as they are. With `gates_stay`, the compact model has gates, whose
    parameters the plan slices too.
    """
    sliced = []
    for optimizer in optimizers:
        _check(optimizer, small)
        sliced.append((optimizer, *sliced_groups(optimizer, check_model(model), small, {} if gates_stay else None)))
    for optimizer, groups, states in sliced:
        for group, new in zip(optimizer.param_groups, groups, strict=True):
            if "param_names" in group:
                group["param_names"] = [name for name, _ in new["params"]]
                new["params"] = [parameter for _, parameter in new["params"]]
            group["params"] = new["params"]
        optimizer.state.clear()
        optimizer.state.update(states)


def sliced_groups(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    small: Compacted[Any],
    sources: Mapping[str, Source] | None = None,
) -> tuple[list[dict[str, Any]], dict[Tensor, dict[str, Any]]]:
    """The groups of `optimizer` with the parameters of the compact model, some perhaps empty, and the sliced states.

    `sources` tells where parameters come from that were made from gates; by default what their modules say.
    """
    old = dict(model.named_parameters(remove_duplicate=False))
    sources = {**(parameter_sources(model) if sources is None else sources), **_baked_sources(small, old)}
    home = {id(p): position for position, group in enumerate(optimizer.param_groups) for p in group["params"]}
    groups: list[dict[str, Any]] = [
        {**{key: value for key, value in group.items() if key not in {"params", "param_names"}}, "params": []}
        for group in optimizer.param_groups
    ]
    if home.keys().isdisjoint(map(id, old.values())):
        raise SparsityError("the optimiser holds no parameter of the model that was compacted")
    states: dict[Tensor, dict[str, Any]] = {}
    for name, parameter in small.model.named_parameters():
        source = _source(name, parameter, old, sources)
        if source is None or id(old[source.name]) not in home:
            continue
        before = old[source.name]
        position = home[id(before)]
        named = "param_names" in optimizer.param_groups[position]
        groups[position]["params"].append((name, parameter) if named else parameter)
        action = small.plan.layers.get(name.rpartition(".")[0])
        if source.keeps_state and not (isinstance(action, Slice) and action.rescaled):
            kept = small.plan.tensors.get(name)
            states[parameter] = _sliced_state(name, optimizer.state.get(before, {}), before, parameter, kept)
    _keep_others(optimizer, {id(parameter) for parameter in old.values()}, groups, states)
    for group in groups:
        _complete_fused_momentum(group, states)
    return groups, {parameter: state for parameter, state in states.items() if state}


def _complete_fused_momentum(group: dict[str, Any], states: dict[Tensor, dict[str, Any]]) -> None:
    """Start what is new with a momentum of zero, if the kernel wants one for each parameter once there is one."""
    key, own = "momentum_buffer", [entry[-1] if isinstance(entry, tuple) else entry for entry in group["params"]]
    if group.get("fused") and any(states.get(parameter, {}).get(key) is not None for parameter in own):
        for parameter in own:
            if states.setdefault(parameter, {}).get(key) is None:
                states[parameter][key] = torch.zeros_like(parameter)


def _baked_sources(small: Compacted[Any], old: Mapping[str, Tensor]) -> dict[str, Source]:
    """Weights that were computed take the group of the first parameter that they were computed from."""
    found: dict[str, Source] = {}
    for module in small.plan.baked:
        first = next((name for name in old if lies_in(name, {module})), None)
        if first is not None:
            found |= {f"{module}.{role}": Source(first) for role in ("weight", "bias")}
    return found


def _keep_others(
    optimizer: torch.optim.Optimizer, own: set[int], groups: list[dict[str, Any]], states: dict[Tensor, dict[str, Any]]
) -> None:
    """Parameters that are not of the model, such as those of a loss, stay in their groups with their state."""
    for group, new in zip(optimizer.param_groups, groups, strict=True):
        names = group.get("param_names", [None] * len(group["params"]))
        for name, parameter in zip(names, group["params"], strict=True):
            if id(parameter) not in own:
                new["params"].append(parameter if name is None else (name, parameter))
                states[parameter] = optimizer.state.get(parameter, {})


def check_can_be_sliced(optimizer: torch.optim.Optimizer) -> None:
    """Raise if the state of this optimiser cannot follow parameters that become smaller."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SparsityError(
            "LBFGS keeps one history of all parameters at once, which cannot be sliced; use another one"
        )


def _check(optimizer: object, small: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SparsityError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r:.50}")
    check_can_be_sliced(optimizer)
    if not isinstance(small, Compacted):
        raise SparsityError(f"small must be what compact returned, a Compacted, got {small!r:.50}")


def _source(
    name: str, parameter: nn.Parameter, old: Mapping[str, Tensor], sources: Mapping[str, Source]
) -> Source | None:
    """Where the compact model's parameter `name` comes from; None for a frozen one that is new."""
    if name in sources and sources[name].name in old:
        return sources[name]
    if name in old and name not in sources:
        return Source(name, keeps_state=True)
    if not parameter.requires_grad:
        return None
    owner, dot, key = name.rpartition(".")
    weight = f"{owner}{dot}weight"
    if key == "bias" and (weight in sources or weight in old):
        # folding added it
        return Source(sources.get(weight, Source(weight)).name)
    raise SparsityError(
        f"'{name}' of the compact model comes from no parameter of the model that was compacted, and would not be "
        "trained; name it in parameter_sources() of its gated module"
    )


def _sliced_state(
    name: str, state: dict[str, Any], old: Tensor, new: Tensor, kept: TensorSlice | None
) -> dict[str, Any]:
    """The state of the entries that stay of a parameter; empty if some state does not belong to single entries."""
    sliced: dict[str, Any] = {}
    for key, entry in state.items():
        if not isinstance(entry, Tensor):
            sliced[key] = entry
        elif entry.shape == old.shape:
            part = entry if kept is None else slice_tensor(entry, kept)
            if part.shape != new.shape:
                raise SparsityError(f"state '{key}' of shape {tuple(part.shape)} does not fit {tuple(new.shape)}")
            sliced[key] = part.clone()
        elif kept is None or entry.numel() == 1:
            sliced[key] = entry.clone()
        else:
            warnings.warn(
                f"'{name}' starts with fresh optimiser state: its '{key}' of shape {tuple(entry.shape)} cannot be "
                f"sliced as the parameter, of shape {tuple(old.shape)}, was",
                SparsityWarning,
                stacklevel=3,
            )
            return {}
    return sliced
