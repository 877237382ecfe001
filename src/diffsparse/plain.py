"""Dataclasses to and from the plain data of JSON and TOML; an error names the key and what was there."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from diffsparse.errors import SparsityError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Thing = TypeVar("Thing")


def to_plain(instance: "DataclassInstance") -> dict[str, Any]:
    """Nested dictionaries of strings, numbers, booleans and lists; None is left out."""
    return cast(dict[str, Any], _plain(asdict(instance)))


def from_plain(kind: type[Thing], value: Any, where: str) -> Thing:
    """What `to_plain` was given: a dataclass, or a collection of them.

    Args:
        kind: a dataclass, or `dict[...]`, `list[...]` or `tuple[...]`. Fields are read by their annotations; `object`
            takes anything, `Annotated[T, check]` a T for which `check(where, value)` does not raise.
        value: plain data.
        where: what messages call it.

    Raises:
        SparsityError: a key is unknown or missing, or a value does not fit; the message names the key and the value.

    Example:
        >>> from_plain(dict[int, list[float]], {"1": [2, 0.5]}, "the table")
        {1: [2.0, 0.5]}
    """
    return cast(Thing, _read(kind, value, where))


def _read(hint: Any, value: Any, where: str) -> Any:
    if hint is object:
        return value
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = _read(args[0], value, where)
        for check in args[1:]:
            check(where, value)
        return value
    if is_dataclass(hint):
        return _read_fields(hint, _table(value, where), where)
    if origin is dict:
        items = _table(value, where).items()
        return {_key(args[0], key, where): _read(args[1], item, f"'{key}' of {where}") for key, item in items}
    if origin is list or origin is tuple:
        return origin(_entries(args, value, where))
    if NoneType in args and (value is None or len(args) == 2):
        return None if value is None else _read(next(arg for arg in args if arg is not NoneType), value, where)
    # the choices of a literal that is one kind of several
    choices = (get_args(arg) if get_origin(arg) is Literal else (arg,) for arg in args or (hint,))
    return _single(tuple(choice for group in choices for choice in group), value, where)


def _read_fields(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    hints, required = _fields(kind)
    if unknown := sorted(set(values) - set(hints)):
        raise SparsityError(f"{where} has unknown key '{unknown[0]}'; known are {', '.join(hints)}")
    if missing := [name for name in required if name not in values]:
        raise SparsityError(f"{where} has no '{missing[0]}'")
    return kind(**{name: _read(hints[name], value, f"'{name}' of {where}") for name, value in values.items()})


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The annotations of the fields, and which of them have no default."""
    hints, known = get_type_hints(kind, include_extras=True), fields(kind)
    needed = [entry.name for entry in known if entry.default is MISSING and entry.default_factory is MISSING]
    return {entry.name: hints[entry.name] for entry in known}, needed


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SparsityError(f"{where} must be a table, got {value!r:.50}")
    return value


def _key(hint: Any, key: str, where: str) -> Any:
    """A key; JSON writes whole numbers as strings."""
    if (get_args(hint) or (hint,))[0] is not int:
        return key
    if not key.isdecimal():
        raise SparsityError(f"keys of {where} must be whole numbers of at least 0, got {key!r:.50}")
    return int(key)


def _entries(hints: tuple[Any, ...], value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise SparsityError(f"{where} must be a list, got {value!r:.50}")
    several = len(hints) == 1 or hints[1] is Ellipsis
    if not several and len(value) != len(hints):
        raise SparsityError(f"{where} must be a list of {len(hints)}, got {value!r:.50}")
    if several and hints[0] is int and {int}.issuperset(map(type, value)):
        return value
    each = [hints[0]] * len(value) if several else hints
    return [_read(hint, item, f"entry {i} of {where}") for i, (hint, item) in enumerate(zip(each, value, strict=True))]


def _single(allowed: tuple[Any, ...], value: Any, where: str) -> Any:
    if Path in allowed and isinstance(value, str):
        return Path(value)
    # not isinstance: a bool is no number
    if float in allowed and type(value) is int:
        return float(value)
    if any(type(value) is choice if isinstance(choice, type) else value == choice for choice in allowed):
        return value
    raise SparsityError(f"{where} cannot be {value!r:.50}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
