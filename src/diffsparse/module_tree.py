"""Names of the modules and tensors of a model."""

from collections.abc import Container

from torch import Tensor, nn


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """What `dict(model.named_modules())` gives, without a generator in a generator for every level of the tree.

    Example:
        >>> list(modules_by_name(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()))))
        ['', '0', '1', '1.0']
    """
    found: dict[str, nn.Module] = {}
    _add_modules(model, "", found, set())
    return found


def _add_modules(module: nn.Module, name: str, found: dict[str, nn.Module], seen: set[nn.Module]) -> None:
    seen.add(module)
    found[name] = module
    prefix = f"{name}." if name else ""
    for key, child in module._modules.items():
        if child is not None and child not in seen:
            _add_modules(child, prefix + key, found, seen)


def lies_in(name: str, modules: Container[str]) -> bool:
    """Whether the module or tensor `name` is one of these modules, or lies in one of them.

    Example:
        >>> lies_in("a.b.weight", {"a.b"}), lies_in("a.b", {"a.b"}), lies_in("a.bc", {"a.b"})
        (True, True, False)
    """
    parts = name.split(".")
    return any(".".join(parts[:depth]) in modules for depth in range(1, len(parts) + 1))


def tensors_by_name(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Parameters, then buffers, of these modules; what is held twice goes by its first name."""
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
