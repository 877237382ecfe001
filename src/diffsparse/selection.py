"""Choosing parts of a model by name pattern, type or predicate."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from diffsparse.errors import SparsityError

Predicate = Callable[[str, nn.Module], bool]
Selection = str | type[nn.Module] | Predicate | Sequence["str | type[nn.Module] | Predicate"]


def _matches(chosen: object, name: str, module: nn.Module) -> bool:
    if isinstance(chosen, str):
        return fnmatchcase(name, chosen)
    if isinstance(chosen, type):
        return isinstance(module, chosen)
    if callable(chosen) and not isinstance(chosen, nn.Module):
        return bool(chosen(name, module))
    raise SparsityError(
        f"a selection is a name pattern, a module type or a function of name and module; got {chosen!r}"
    )


def select(model: nn.Module, only: Selection | None) -> set[nn.Module]:
    """The modules that `only` chooses, with everything inside them; all of the model for None.

    A string is a glob on the qualified name (`layer1.*.bn?`), a type is an isinstance test, a function gets the
    name and the module; a sequence chooses what any of its members chooses.
    """
    if only is None:
        return set(model.modules())
    several: Sequence[object] = only if isinstance(only, Sequence) and not isinstance(only, str) else [only]
    found: set[nn.Module] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if any(_matches(chosen, name, module) for chosen in several):
            found.update(module.modules())
    return found
