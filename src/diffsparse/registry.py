"""Tables of named extensions: this package, its features and other packages add to them in the same way."""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from diffsparse.errors import SparsityError, require_one_of

Thing = TypeVar("Thing")

# Modules that a package declares under this entry point are imported before names are looked up.
ENTRY_POINTS = "diffsparse.features"


@cache
def load_features() -> None:
    """Import every module that an installed package declares as a feature; importing it registers what it brings."""
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except ImportError as error:
            raise SparsityError(f"the feature '{point.name}' ({point.value}) cannot be imported: {error}") from error


class Registry(Generic[Thing]):
    """Things of one kind by name; messages call one of them a `kind`.

    Example:
        >>> colours = Registry[int]("colour")
        >>> colours.add("red", 1)
        >>> colours.find("red"), colours.names()
        (1, ('red',))
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> None:
        """Register `thing`; raises if another one already has this name."""
        if not isinstance(name, str) or not name:
            raise SparsityError(f"the name of a {self.kind} must be a non-empty string, got {name!r}")
        if self._things.setdefault(name, thing) is not thing:
            raise SparsityError(f"there is already a {self.kind} called {name!r}")

    def find(self, name: str) -> Thing:
        """The thing called `name`; the error lists the names and suggests the closest."""
        load_features()
        require_one_of(self.kind, name, self._things)
        return self._things[name]

    def names(self) -> tuple[str, ...]:
        """All names, in the order of registration."""
        return tuple(name for name, _ in self.items())

    def items(self) -> Iterator[tuple[str, Thing]]:
        """All names and things, in the order of registration."""
        load_features()
        yield from self._things.items()
