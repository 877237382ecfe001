"""The page of a book in Markdown, made from recipes and result files alone."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from diffsparse.recipes.book import Book
from diffsparse.recipes.columns import OWN, PAPER
from diffsparse.recipes.costs import all_costs
from diffsparse.recipes.data_table import data_grid
from diffsparse.recipes.grid import Grid, table_grid
from diffsparse.recipes.pictures import picture_files
from diffsparse.recipes.results import table_values

SIZE = "small"
"""The size that the page shows."""
LARGE = "paper"
"""The size that costs are stated for."""


def page_path(book: Book) -> Path:
    """Where the page is."""
    return (book.folder / book.cover.page).resolve()


def page_text(book: Book) -> str:
    """The whole page."""
    lines = [f"# {book.cover.title}", "", "<!-- generated: diffsparse paper --write -->", ""]
    lines += [book.cover.introduction.strip(), "", *_conventions(), ""]
    for name in book.tables:
        lines += [*_section(book, name), ""]
    lines += [*_costs(book), "", *_missing(book)]
    return "\n".join(lines) + "\n"


def _conventions() -> Iterator[str]:
    yield "## Conventions"
    yield ""
    yield "All tables below use the paper's conventions; `diffsparse paper --show --convention own` prints ours."
    yield ""
    for convention in (PAPER, OWN):
        yield f"- *{convention.name}*: {convention.words}."


def _section(book: Book, name: str) -> Iterator[str]:
    table = book.tables[name]
    yield f"## {table.title}"
    yield ""
    labels = " and ".join(f"`{label}`" for label in table.labels)
    yield f"{f'{labels} of the paper, ' if labels else ''}recipe `{name}.toml`."
    if table.data:
        yield from ("", *markdown(data_grid(book, name)))
    if table.rows:
        yield from _rows(book, name)
    for row, files in picture_files(book, name, SIZE).items():
        yield from ("", *_picture(book, row, files))
    if table.text:
        yield from ("", table.text.strip())


def _rows(book: Book, name: str) -> Iterator[str]:
    table = book.tables[name]
    if table.whole:
        costs = ", ".join(f"{cost:.2g} {key}" for key, cost in table.whole.items())
        yield from ("", f"The whole network has {costs} by the paper. Cells show the paper's number | ours.")
    if size := table.sizes.get(SIZE):
        runs = f"{size.seeds} seeds" if size.seeds > 1 else "one seed"
        estimate = f", about {size.minutes:.0f} min on {size.cores} CPU cores" if size.minutes else ""
        yield from (
            "",
            f"Ours is the size `{SIZE}` ({runs}{estimate})" + (f": {size.note.strip()}" if size.note else "."),
        )
    grid = table_grid(book, name, SIZE, PAPER)
    yield from ("", *markdown(grid), "")
    values = table_values(book, name, SIZE, PAPER).values()
    wanted, done = sum(row.wanted for row in values), sum(row.runs for row in values)
    if done < wanted:
        yield "*Not run yet.*" if not done else f"*Not complete: {done} of {wanted} runs.*"
    yield from (f"- {note}" for note in grid.notes)


def _picture(book: Book, row: str, files: dict[str, Path]) -> Iterator[str]:
    if not all(path.exists() for path in files.values()):
        yield f"*{row}: not drawn yet.*"
        return
    light, dark = (os.path.relpath(files[paper], page_path(book).parent) for paper in ("light", "dark"))
    yield f'{row}: <picture><source media="(prefers-color-scheme: dark)" srcset="{dark}"><img src="{light}"></picture>'


def _costs(book: Book) -> Iterator[str]:
    machine = book.cover.accelerator
    yield f"## What the size `{LARGE}` costs"
    yield ""
    yield (
        f"A counted estimate for {machine.name}; nothing of it was run. Operations are those of all training steps: "
        "2 per multiply-accumulate of the whole network, forward and backward together three times a forward pass, "
        f"and one forward pass of the teacher. {machine.source.strip()} {machine.devices} devices are assumed to reach "
        f"{machine.efficiency:.0%} of the linear speed-up. Memory is for weights, gradients, momentum and the outputs "
        "of all layers at the batch of the recipe, in float32, on one device. Disk is for checkpoints and results."
    )
    costs = all_costs(book, book.tables, LARGE)
    rows = [
        (
            name,
            f"{cost.runs}",
            f"{cost.flops:.1e}",
            f"{cost.hours:,.0f}",
            f"{cost.hours_on_all:,.1f}",
            f"{cost.memory:.1f}",
            f"{cost.disk:.1f}",
        )
        for name, cost in costs.items()
    ]
    total = [sum(getattr(cost, key) for cost in costs.values()) for key in ("runs", "flops", "hours", "hours_on_all")]
    disk = sum(cost.disk for cost in costs.values())
    rows.append(("all", f"{total[0]}", f"{total[1]:.1e}", f"{total[2]:,.0f}", f"{total[3]:,.1f}", "", f"{disk:.1f}"))
    headings = ("recipe", "runs", "operations", "hours on 1", f"hours on {machine.devices}", "memory GB", "disk GB")
    yield from ("", *markdown(Grid(headings=headings, rows=tuple(rows))))
    yield ""
    sizes = ", ".join(f"{name} {data.gigabytes:g} GB" for name, data in book.cover.data.items())
    yield f"The data sets themselves: {sizes}."


def _missing(book: Book) -> Iterator[str]:
    yield "## What is on paper only"
    yield ""
    yield f"The sizes `{LARGE}` and `day` of all recipes: they were built and counted, not trained. Besides:"
    yield ""
    for name in book.tables:
        values = table_values(book, name, SIZE, PAPER)
        quoted = [row for row, found in values.items() if not found.wanted]
        wanted, done = (sum(getattr(row, key) for row in values.values()) for key in ("wanted", "runs"))
        if wanted and not done:
            yield f"- `{name}`: everything."
        elif done < wanted:
            yield f"- `{name}`: {wanted - done} of {wanted} runs."
        if quoted and done:
            yield f"- `{name}`, only quoted: {', '.join(quoted)}."


def markdown(grid: Grid) -> Iterator[str]:
    """A table of Markdown; a bar within a cell is escaped."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    yield line(grid.headings)
    yield f"|{'---|' * len(grid.headings)}"
    yield from map(line, grid.rows)
