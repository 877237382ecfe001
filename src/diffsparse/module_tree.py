"""The modules and tensors of a model: find, replace and unwrap them."""

from collections.abc import Container, Mapping
from itertools import chain
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from diffsparse.errors import SparsityError

Model = TypeVar("Model", bound=nn.Module)


class HoldsModel(Protocol):
    """A result that holds a model, as that of `compact` does."""

    @property
    def model(self) -> nn.Module: ...


OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module."""
HOOKS = tuple(key for key in vars(nn.Module()) if "hook" in key)
"""Those of them that have to do with hooks."""
_LAZY = frozenset({UninitializedParameter, UninitializedBuffer})


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """The same as `dict(model.named_modules())`, but faster: that nests one generator per level of the tree.

    Example:
        >>> list(modules_by_name(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))))
        ['', '0', '1', '1.0']
    """
    found, seen = dict[str, nn.Module](), set[nn.Module]()

    def add(module: nn.Module, name: str) -> None:
        seen.add(module)
        found[name] = module
        prefix = f"{name}." if name else ""
        for key, child in module._modules.items():
            if child is not None and child not in seen:
                add(child, prefix + key)

    add(model, "")
    return found


def layer_widths(model: nn.Module) -> dict[str, int]:
    """Outputs of every convolution, linear layer and other layer with a weight that says how many it has, by name.

    Example:
        >>> layer_widths(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
        {'0': 8, '2': 2}
    """
    widths: dict[str, int] = {}
    for name, module in modules_by_name(model).items():
        # the last is that of the linear layers of GPT-2
        sizes = (getattr(module, key, None) for key in ("out_channels", "out_features", "nf"))
        width = next((size for size in sizes if isinstance(size, int)), None)
        # not by its value: what stands for a layer that is gone still answers for its weight
        computed = isinstance(getattr(type(module), "weight", None), property)
        if width is not None and (computed or module._parameters.get("weight") is not None):
            widths[name] = width
    return widths


def runs_in_order(module: nn.Module) -> bool:
    """Whether all that the module does is to run its children one after the other."""
    return type(module).forward is nn.Sequential.forward


def lies_in(name: str, modules: Container[str]) -> bool:
    """Whether the module or tensor `name` is one of these modules, or lies in one of them.

    Example:
        >>> lies_in("a.b.weight", {"a.b"}), lies_in("a.b", {"a.b"}), lies_in("a.bc", {"a.b"})
        (True, True, False)
    """
    parts = name.split(".")
    return any(".".join(parts[:depth]) in modules for depth in range(1, len(parts) + 1))


def tensors_by_name(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Parameters, then buffers, of these modules; a tensor with several names goes by the first."""
    names: dict[int, str] = {}
    found: dict[str, Tensor] = {}
    for place in ("_parameters", "_buffers"):
        for name, module in modules.items():
            for key, tensor in vars(module)[place].items():
                if tensor is not None:
                    full = f"{name}.{key}" if name else key
                    if names.setdefault(id(tensor), full) == full:
                        found[full] = tensor
    return found


def memory_of(tensor: Tensor) -> int | None:
    """Where the memory of `tensor` begins; None if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None


def is_sharded(tensor: Tensor | None) -> bool:
    """Whether `tensor` is spread over processes, as `fully_shard` leaves parameters while they do not compute."""
    # not by its class, because importing that takes long, and if nobody has, nothing is sharded
    return hasattr(tensor, "full_tensor")


def require_whole_model(model: nn.Module, reason: str) -> None:
    """Raise, with a reason, if a parameter of `model` is sharded."""
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise SparsityError(f"'{name}' is sharded over processes; {reason}")


def lazy_tensor(model: nn.Module) -> str | None:
    """The name of a parameter or buffer that has no size before the model has run; None if there is none."""
    for name, module in modules_by_name(model).items():
        for key, tensor in chain(module._parameters.items(), module._buffers.items()):
            if type(tensor) in _LAZY:
                return f"{name}.{key}" if name else key
    return None


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, or `model` if it is not compiled."""
    return cast(nn.Module, getattr(model, "_orig_mod", model))


def held_model(thing: Any) -> Any:
    """The model in `thing`, if it is a result that holds one, as that of `compact` does; otherwise `thing` itself.

    Example:
        >>> from types import SimpleNamespace
        >>> held_model(SimpleNamespace(model=nn.ReLU())), held_model(nn.Tanh())
        (ReLU(), Tanh())
    """
    inner = getattr(thing, "model", None)
    return inner if isinstance(inner, nn.Module) and not isinstance(thing, nn.Module) else thing


def without_wrappers(model: Model) -> Model:
    """The user's own model, without the wrappers of data parallel training and `torch.compile`."""
    inner = uncompiled(model)
    if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = inner.module
    return model if inner is model else without_wrappers(cast(Model, inner))


def copy_training_flags(source: nn.Module, target: nn.Module) -> None:
    """Give each module of `target` the training flag of the module of that name in `source`, or of `source` itself."""
    flags = {name: module.training for name, module in modules_by_name(source).items()}
    for name, module in modules_by_name(target).items():
        module.training = flags.get(name, source.training)


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replace modules wherever `model` holds them, in place; return the model, or what replaces it."""
    for module in list(model.modules()):
        for key, child in module._modules.items():
            if child is not None and child in replacements:
                module._modules[key] = replacements[child]
    return replacements.get(model, model)
