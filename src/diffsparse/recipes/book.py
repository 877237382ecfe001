"""A folder of tables: one TOML file per table or figure, and book.toml with what they share."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from diffsparse.errors import SparsityError
from diffsparse.plain import from_plain
from diffsparse.recipes.table import Row, Table

BOOK = "book.toml"
RESULTS = "results"
Thing = TypeVar("Thing")


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What must be known of a data set to count costs without opening it."""

    train: int
    """Inputs to train on."""
    shape: tuple[int, ...]
    outputs: int
    gigabytes: float
    """Size on the disk."""
    network: str | None = None
    """package.module:Name of the network to count, where that of a recipe can only be built from the data."""
    arguments: dict[str, object] = field(default_factory=dict)
    """Its keyword arguments, over those of the recipe."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """The machine that costs are stated for."""

    name: str
    memory: float
    """Gigabytes."""
    throughput: dict[str, float]
    """Operations per second that training is assumed to reach, by data set; 2 per multiply-accumulate."""
    devices: int = 8
    efficiency: float = 0.9
    """Share of the linear speed-up that so many devices are assumed to reach."""
    source: str = ""
    """Where the throughput comes from, in words."""


@dataclass(frozen=True, kw_only=True)
class Cover:
    """The file book.toml."""

    title: str
    introduction: str
    order: tuple[str, ...]
    """Names of the tables, as they appear."""
    page: Path
    """The page that is generated, relative to the folder of the book."""
    figures: Path
    """Folder for pictures, relative to the folder of the book."""
    accelerator: Accelerator
    data: dict[str, DataFacts]
    group: int = 12
    """Channels per group, for group sparsity."""


@dataclass(frozen=True, kw_only=True)
class Book:
    """All tables of a folder."""

    folder: Path
    cover: Cover
    tables: dict[str, Table]

    @property
    def results(self) -> Path:
        """Where results are kept."""
        return self.folder / RESULTS

    def chosen(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The tables called `names`, or all; a label will do as well as the name of a file."""
        by_label = {label: name for name, table in self.tables.items() for label in table.labels}
        for name in names:
            if name not in self.tables and name not in by_label:
                raise SparsityError(
                    f"there is no table '{name}' in '{self.folder}'; there are {', '.join(self.tables)}"
                )
        return tuple(dict.fromkeys(by_label.get(name, name) for name in names)) or tuple(self.tables)

    def source(self, name: str, row: Row) -> tuple[str, Row]:
        """The table and row whose runs a row of the table `name` shows."""
        if row.of is None:
            return name, row
        table, _, other = row.of.partition("/")
        return self.source(table, self.tables[table].row(other))


def read_book(folder: Path) -> Book:
    """The book in `folder`, checked; raises if it is not there or a file in it is wrong."""
    if not (folder / BOOK).is_file():
        missing = f"there is no folder of recipes at '{folder}' (it would hold a {BOOK})"
        raise SparsityError(f"{missing}: run this in a checkout of the project, or give --recipes DIR")
    cover = _read(Cover, folder / BOOK)
    names = {path.stem for path in folder.glob("*.toml")} - {Path(BOOK).stem}
    if odd := sorted(names ^ {*cover.order}):
        raise SparsityError(f"'{odd[0]}' must be both a file {odd[0]}.toml in '{folder}' and in the order of {BOOK}")
    book = Book(
        folder=folder, cover=cover, tables={name: _read(Table, folder / f"{name}.toml") for name in cover.order}
    )
    for name, table in book.tables.items():
        table.check(f"{name}.toml")
        for reference in (
            *(row.of for row in table.rows),
            *(f"{p.table}/{row}" for p in table.pictures for row in p.rows),
        ):
            if reference is not None:
                _check_reference(book, name, reference)
    return book


def _read(kind: type[Thing], path: Path) -> Thing:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SparsityError(f"cannot read '{path}': {error}") from error
    return from_plain(kind, values, f"'{path.name}'")


def _check_reference(book: Book, name: str, reference: str) -> None:
    table, _, row = reference.partition("/")
    if table not in book.tables or row not in [entry.name for entry in book.tables[table].rows]:
        raise SparsityError(f"{name}.toml refers to '{reference}', and there is no such table and row")
