"""Fields of JSON objects, each checked as it is read; an error names the field and what was there."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from diffsparse.errors import SparsityError, require_whole

Reader: TypeAlias = Callable[[str, Any], Any]
"""Takes the name of a field and what JSON had there; returns the value or raises."""


def read_fields(name: str, entry: Any, readers: Mapping[str, Reader], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of the object `entry`, each read by its reader; those left out stay out.

    Example:
        >>> read_fields("conv", {"width": 3}, {"width": count, "dim": count})
        {'width': 3}
    """
    found = mapping(f"'{name}'", entry)
    unknown = [key for key in found if key not in readers]
    missing = [key for key in required if key not in found]
    if unknown or missing:
        raise SparsityError(
            f"'{name}' has " + (f"an unknown field '{unknown[0]}'" if unknown else f"no '{missing[0]}'")
        )
    return {key: readers[key](f"'{key}' of '{name}'", value) for key, value in found.items()}


def of_kind(kind: type, words: str) -> Reader:
    """Reads an instance of `kind`, which `words` describe to the user."""

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise SparsityError(f"{name} must be {words}, got {value!r:.50}")
        return value

    return read


mapping = of_kind(dict, "an object")
sequence = of_kind(list, "a list")


def one_of(*words: str) -> Reader:
    """Reads one of `words`."""

    def read(name: str, value: Any) -> Any:
        if value not in words:
            raise SparsityError(f"{name} must be one of {', '.join(words)}, got {value!r:.50}")
        return value

    return read


def or_none(reader: Reader) -> Reader:
    """Reads None, or what `reader` reads."""
    return lambda name, value: None if value is None else reader(name, value)


def each(reader: Reader) -> Reader:
    """Reads a list of what `reader` reads."""
    return lambda name, value: [reader(name, entry) for entry in sequence(name, value)]


def count(name: str, value: Any) -> int:
    """A whole number of at least 0."""
    return require_whole(name, value, low=0)


counts = each(count)


def pair(name: str, value: Any) -> tuple[int, int]:
    """Two whole numbers of at least 0."""
    numbers = counts(name, value)
    if len(numbers) != 2:
        raise SparsityError(f"{name} must be two numbers, got {value!r:.50}")
    return numbers[0], numbers[1]


def rising(name: str, value: Any) -> list[int]:
    """Indices, each above the one in front of it."""
    indices: list[int] = counts(name, value)
    if indices != sorted(set(indices)):
        raise SparsityError(f"{name} must be indices in rising order, got {value!r:.50}")
    return indices


def rising_by_dim(name: str, value: Any) -> dict[int, list[int]]:
    """Rising indices by a dimension, which JSON has as a string."""
    return {count(name, int(dim)): rising(name, kept) for dim, kept in mapping(name, value).items()}
