"""Models whose parameters `torch.distributed.fsdp.fully_shard` spreads over processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from diffsparse.compaction.duplicate import Duplicate
from diffsparse.errors import require_module
from diffsparse.gates import named_gates
from diffsparse.module_tree import is_sharded

Model = TypeVar("Model", bound=nn.Module)

_OWN = frozenset({"_parameters", "_buffers", "_modules"})


def replicate_gates(model: nn.Module, group: Any = None) -> set[nn.Parameter]:
    """Let each process hold all gates of `model`, and average their gradients; returns the parameters of the gates.

    Give these to `fully_shard`, which then leaves them alone. A gate has one number per channel, so that nothing is
    saved by sharding it, and its threshold is a single number, which `fully_shard` refuses.

    Args:
        model: a gated model, before it is sharded.
        group: the processes that share the work; by default all.

    Example:
        >>> import diffsparse as ds
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
        >>> gates = ds.replicate_gates(model)  # then fully_shard(model, ignored_params=gates)
        >>> sorted(tuple(gate.shape) for gate in gates)
        [(), (8,)]
    """
    gates = {parameter for _, gate in named_gates(require_module("model", model)) for parameter in gate.parameters()}

    def average(parameter: Tensor) -> None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and parameter.grad is not None:
            parameter.grad.div_(distributed.get_world_size(group))
            distributed.all_reduce(parameter.grad, group=group)

    for parameter in gates:
        parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]
    return gates


def gathered(model: Model) -> Model:
    """A copy of `model` that is not sharded, for `compact` and `save`; call it in all processes at once.

    Example:
        >>> gathered(nn.Linear(2, 1))
        Linear(in_features=2, out_features=1, bias=True)
    """
    duplicate = Duplicate(require_module("model", model))
    whole: list[Tensor] = []
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and is_sharded(tensor) and id(tensor) not in duplicate.made:
                full: Tensor = cast(Any, tensor.detach()).full_tensor()
                is_parameter = isinstance(tensor, nn.Parameter)
                whole.append(nn.Parameter(full, tensor.requires_grad) if is_parameter else full)
                duplicate.made[id(tensor)] = whole[-1]
    with _without_sharding(model):
        return cast(Model, duplicate(model))


def holds_shards(model: nn.Module) -> bool:
    """Whether a parameter of `model` is sharded."""
    return any(map(is_sharded, model.parameters()))


@contextmanager
def _without_sharding(model: nn.Module) -> Iterator[None]:
    """Give modules the class that they had before `fully_shard`, and take away its hooks and its state, for a while."""
    kinds: dict[nn.Module, type[nn.Module]] = {}
    contents: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
    for module in model.modules():
        if type(module).__mro__[1].__module__.startswith("torch.distributed"):
            kinds[module] = type(module)
        for key, held in vars(module).items():
            if key not in _OWN and isinstance(held, dict) and any(map(_shards, held.values())):
                contents.append((held, dict(held)))
    try:
        for module, kind in kinds.items():
            # PyTorch made a class of these two: its own, and that of the module
            module.__class__ = kind.__bases__[-1]
        for held, own in contents:
            held.clear()
            held.update({key: thing for key, thing in own.items() if not _shards(thing)})
        yield
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind
        for held, own in contents:
            held.clear()
            held.update(own)


def _shards(thing: Any) -> bool:
    """Whether it is a hook or an object of PyTorch's that has to do with several processes."""
    return str(getattr(thing, "__module__", "")).startswith("torch.distributed.")
