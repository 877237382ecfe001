"""One table or figure as data: its rows, the runs behind them at each size, and what was reported elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from diffsparse.errors import SparsityError, require_whole
from diffsparse.recipes.columns import COLUMNS


@dataclass(frozen=True, kw_only=True)
class Size:
    """One scale at which a table can be made."""

    seeds: int
    """Runs per row, with seeds from 0 on."""
    minutes: float | None = None
    """Estimated time of the whole table on `cores` CPU cores; None where it is not meant for a CPU."""
    cores: int = 2
    note: str = ""
    """What is different from the reported setting, in words."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings of all runs, as in the configuration file of `diffsparse train`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row. It is trained at the sizes that it names; a row without any is only quoted."""

    name: str
    reported: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Value and, if it is known, spread, by column."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings at all sizes, over those of the size."""
    sizes: dict[str, dict[str, object]] = field(default_factory=dict)
    """Settings at each size at which the row is trained, over all others."""
    of: str | None = None
    """TABLE/ROW whose runs this row shows, in the place of runs of its own."""
    teacher: str | None = None
    """The row of this table, by name, whose network of the same seed is the teacher."""
    weight: float = 1.0
    """Time of an epoch relative to other rows, for the estimate of the time left."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement about two rows, or a row and a number, to be checked on what was reported and on our runs."""

    text: str
    column: str
    smaller: str
    """The row whose value is at most the other one."""
    larger: str | None = None
    limit: float | None = None
    """The number in the place of a row `larger`."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure made from finished runs."""

    kind: Literal["connections", "history", "file"]
    """What each layer still reads; the curves of a run; or a picture that the run itself has written."""
    table: str
    rows: tuple[str, ...]
    """Rows of that table, one picture for each, of the first seed."""
    view: Literal["both", "channels", "groups"] = "both"
    """For connections: what to draw."""
    file: str = ""
    """For files: the name of the picture in the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table or figure."""

    title: str
    labels: tuple[str, ...] = ()
    """What it is called where it was reported."""
    columns: tuple[str, ...] = ()
    """Names of `columns.COLUMNS`, in the order of the table."""
    headline: str = "error"
    """The column by which rows are compared."""
    base: str | None = None
    """The row that others are compared with."""
    statistic: Literal["mean", "median"] = "mean"
    """What a row shows of its runs; the median run is that of the headline. The spread is that of all runs."""
    whole: dict[str, float] = field(default_factory=dict)
    """Reported cost of the whole network: flops or mult_adds, and params."""
    sizes: dict[str, Size] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    claims: tuple[Claim, ...] = ()
    pictures: tuple[Picture, ...] = ()
    data: tuple[str, ...] = ()
    """Data sets to describe, for a table about data."""
    facts: dict[str, str] = field(default_factory=dict)
    """What was reported of the data, for a table about data."""
    text: str = ""
    """Where our rows differ from the reported ones, and why."""

    def check(self, name: str) -> None:
        """Raise, naming the file, if a name in it leads nowhere."""
        names = [row.name for row in self.rows]
        for row in names:
            if names.count(row) > 1:
                raise SparsityError(f"{name} has two rows called '{row}'")
        columns = {*self.columns, *(column for row in self.rows for column in row.reported)}
        columns |= {claim.column for claim in self.claims}
        if self.rows:
            columns.add(self.headline)
        for column in sorted(columns - COLUMNS.keys()):
            raise SparsityError(f"{name} has a column '{column}'; known are {', '.join(COLUMNS)}")
        ends = [end for claim in self.claims for end in (claim.smaller, claim.larger)]
        for wanted in (self.base, *(entry.teacher for entry in self.rows), *ends):
            if wanted is not None and wanted not in names:
                raise SparsityError(f"{name} speaks of a row '{wanted}', which it does not have")
        for claim in self.claims:
            if (claim.larger is None) == (claim.limit is None):
                raise SparsityError(f"the claim '{claim.text}' of {name} needs either larger or limit")
        for size, values in self.sizes.items():
            require_whole(f"seeds of '{size}' of {name}", values.seeds, low=1)
        for entry in self.rows:
            for size in sorted(entry.sizes.keys() - self.sizes.keys()):
                raise SparsityError(f"row '{entry.name}' of {name} has a size '{size}' that the table does not have")

    def row(self, name: str) -> Row:
        """The row called `name`."""
        return next(row for row in self.rows if row.name == name)

    def settings(self, row: Row, size: str) -> dict[str, Any]:
        """All settings of the runs of a row: those of the size, then of the row, then of the row at that size."""
        return merged(merged(self.sizes[size].settings, row.settings), row.sizes[size])


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables put together; what is in `second` wins.

    Example:
        >>> merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 4}})
        {'a': 1, 'b': {'c': 2, 'd': 4}}
    """
    both = dict(first)
    for key, value in second.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both
