"""Pictures of finished runs, each as an SVG for light and one for dark paper."""

from collections.abc import Iterable
from pathlib import Path

from diffsparse import plot
from diffsparse.checkpoint import load
from diffsparse.errors import SparsityError
from diffsparse.files import write_text
from diffsparse.plot import save_picture
from diffsparse.recipes.book import Book
from diffsparse.recipes.jobs import Job, row_jobs
from diffsparse.recipes.networks import whole_network
from diffsparse.recipes.table import Picture
from diffsparse.training.run import TRAINED

PAPERS = {"light": False, "dark": True}
_DARK = "<style>svg { filter: invert(0.93) hue-rotate(180deg); }</style>"


def picture_files(book: Book, name: str, size: str) -> dict[str, dict[str, Path]]:
    """Where the pictures of a table are or would be: by row, by light and dark."""
    table, folder = book.tables[name], (book.folder / book.cover.figures).resolve()
    rows = [row for picture in table.pictures for row in picture.rows]
    return {row: {paper: folder / f"{name}-{size}-{rows.index(row)}-{paper}.svg" for paper in PAPERS} for row in rows}


def draw_pictures(book: Book, names: Iterable[str], size: str, runs: Path, data_root: Path | None) -> list[Path]:
    """Draw what can be drawn from the runs that are finished; the paths of what was written."""
    written: list[Path] = []
    for name in names:
        files = picture_files(book, name, size)
        for picture in book.tables[name].pictures:
            for row in picture.rows:
                entry = book.tables[picture.table].row(row)
                jobs = row_jobs(book, picture.table, entry, size, data_root=data_root, runs=runs)
                if jobs and jobs[0].done:
                    written += [
                        path for paper, path in files[row].items() if _draw(book, picture, jobs[0], path, paper)
                    ]
    return written


def _draw(book: Book, picture: Picture, job: Job, path: Path, paper: str) -> bool:
    """Write one picture; False if it cannot be drawn."""
    dark = PAPERS[paper]
    if picture.kind == "file":
        source = job.folder / picture.file
        if not source.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        write_text(path, darkened(text) if dark else text)
        return True
    if picture.kind == "connections":
        whole, _ = whole_network(job.recipe, book.cover.data[job.recipe.data])
        figure = plot.connections(load(job.folder / TRAINED, whole), view=picture.view, dark=dark)
    else:
        figure = plot.history(job.folder, dark=dark)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_picture(path, figure)
    return True


def darkened(svg: str) -> str:
    """An SVG with light and dark exchanged and the hues kept.

    Example:
        >>> darkened('<svg width="1"><path/></svg>').endswith("</style><path/></svg>")
        True
    """
    start = svg.find("<svg")
    end = svg.find(">", start) + 1
    if start < 0 or end == 0:
        raise SparsityError("this is not an SVG picture")
    return svg[:end] + _DARK + svg[end:]
