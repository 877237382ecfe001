"""Choosing parts of a model by name pattern, type or predicate."""

from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from diffsparse.errors import SparsityError

Predicate = Callable[[str, nn.Module], bool]
Selection = str | type[nn.Module] | Predicate | Sequence["str | type[nn.Module] | Predicate"]


def select(
    model: nn.Module, only: Selection | None, candidates: Collection[nn.Module], kind: str = "module"
) -> set[nn.Module]:
    """The `candidates` in `model` that `only` chooses; all of them for None.

    A string is a glob on the qualified name (`layer1.*.bn?`), a type is an isinstance test; both choose every
    candidate inside the modules they match. A function gets name and module of each candidate and says whether to
    choose it. A sequence chooses what any of its members chooses. A member that chooses nothing is an error; `kind` is
    what the message calls a candidate.
    """
    if only is None:
        return set(candidates)
    members: Sequence[object] = only if isinstance(only, Sequence) and not isinstance(only, str) else [only]
    if not members:
        raise SparsityError(f"the selection {only!r} is empty; leave it out to choose every {kind}")
    chosen: set[nn.Module] = set()
    for member in members:
        found = set(_chosen(model, member, set(candidates)))
        if not found:
            raise SparsityError(f"the selection {member!r} chooses no {kind} of {type(model).__name__}")
        chosen |= found
    return chosen


def _chosen(model: nn.Module, member: object, candidates: set[nn.Module]) -> Iterator[nn.Module]:
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(member, str) and member:
            matched = fnmatchcase(name, member)
        elif isinstance(member, type):
            matched = isinstance(module, member)
        elif callable(member) and not isinstance(member, nn.Module):
            if module in candidates and member(name, module):
                yield module
            continue
        else:
            kinds = "a name pattern, a module type or a function of name and module"
            raise SparsityError(f"a selection is {kinds}; got {member!r}")
        if matched:
            yield from candidates.intersection(module.modules())
