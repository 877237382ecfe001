"""Dataclasses to and from the plain data of JSON and TOML."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from diffsparse.errors import SparsityError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Dataclass = TypeVar("Dataclass")


def to_plain(instance: "DataclassInstance") -> dict[str, Any]:
    """Nested dictionaries of strings, numbers, booleans and lists; what is None is left out."""
    return {key: _plain(value) for key, value in asdict(instance).items() if value is not None}


def from_plain(kind: type[Dataclass], values: Mapping[str, Any], where: str) -> Dataclass:
    """The dataclass that `to_plain` was given; raises with the key and `where` on what it does not know."""
    hints = get_type_hints(kind)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise SparsityError(f"{where} has unknown key '{unknown[0]}'; known are {', '.join(hints)}")
    return kind(**{name: _value(value, hints[name], f"'{name}' of {where}") for name, value in values.items()})


def _value(value: Any, hint: Any, where: str) -> Any:
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise SparsityError(f"{where} is a table of settings, got {value!r}")
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    if hint == tuple[float, ...]:
        if not isinstance(value, list) or not all(_fits(item, (float,)) for item in value):
            raise SparsityError(f"{where} is a list of numbers, got {value!r}")
        return tuple(float(item) for item in value)
    allowed = get_args(hint) or (hint,)
    if Path in allowed and isinstance(value, str):
        return Path(value)
    if not _fits(value, allowed):
        raise SparsityError(f"{where} cannot be {value!r}")
    return float(value) if float in allowed and isinstance(value, int) else value


def _fits(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether `value` is one of the allowed constants, or of one of the allowed types; a bool is no number."""
    if type(value) is int and float in allowed:
        return True
    return any(type(value) is choice if isinstance(choice, type) else value == choice for choice in allowed)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
