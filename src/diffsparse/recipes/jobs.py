"""The runs behind tables: one job per row and seed, teachers before their students."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffsparse.errors import SparsityError
from diffsparse.recipes.book import BOOK, Book
from diffsparse.recipes.table import Row
from diffsparse.training import Distillation, Recipe
from diffsparse.training.folder import RunFolder
from diffsparse.training.run import TRAINED


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    table: str
    row: str
    size: str
    seed: int
    recipe: Recipe
    folder: Path
    key: str
    """Tells runs with different settings apart; the place of the data is no part of it."""
    weight: float
    teacher: "Job | None" = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.table} / {self.row}, seed {self.seed}"

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return RunFolder(self.folder).result.exists()

    @property
    def epochs(self) -> int:
        """Epochs of all phases."""
        return self.recipe.epochs + (self.recipe.sparsifying.retrain_epochs or 0)

    @property
    def work(self) -> float:
        """Epochs, weighted by how long one takes."""
        return self.epochs * self.weight


def jobs_of(book: Book, names: Iterable[str], size: str, *, data_root: Path | None, runs: Path) -> list[Job]:
    """All runs of the tables called `names` at this size, each once, in an order in which they can be made."""
    found: dict[Path, Job] = {}
    for name in names:
        for row in book.tables[name].rows:
            for job in row_jobs(book, name, row, size, data_root=data_root, runs=runs):
                if job.teacher is not None:
                    found.setdefault(job.teacher.folder, job.teacher)
                found.setdefault(job.folder, job)
    return list(found.values())


def row_jobs(
    book: Book, name: str, row: Row, size: str, *, data_root: Path | None = None, runs: Path = Path("runs")
) -> list[Job]:
    """The runs of one row, one per seed; none if it is not trained at this size."""
    name, row = book.source(name, row)
    table = book.tables[name]
    if size not in row.sizes:
        return []
    settings = table.settings(row, size)
    teachers: list[Job | None] = [None] * table.sizes[size].seeds
    if row.teacher is not None:
        teachers = [*row_jobs(book, name, table.row(row.teacher), size, data_root=data_root, runs=runs)]
        if not teachers:
            raise SparsityError(f"row '{row.name}' of {name} has a teacher that is not trained at size {size}")
    key = row_key(book, name, row, size)
    jobs = []
    for seed in range(table.sizes[size].seeds):
        # with fewer teachers than students, some share one
        teacher = teachers[seed % len(teachers)]
        recipe = Recipe.from_dict(settings | {"seed": seed}, f"row '{row.name}' of {name} at size {size}")
        if recipe.data not in book.cover.data or recipe.data not in book.cover.accelerator.throughput:
            where = f"row '{row.name}' of {name} has the data '{recipe.data}'"
            raise SparsityError(f"{where}, of which {BOOK} must have an entry in data and in accelerator.throughput")
        if teacher is not None:
            taught = replace(recipe.distillation, teacher=str(teacher.folder / TRAINED))
            recipe = replace(recipe, distillation=_with_model(taught, recipe, teacher.recipe))
        jobs.append(
            Job(
                table=name,
                row=row.name,
                size=size,
                seed=seed,
                recipe=replace(recipe, data_root=data_root),
                folder=runs / size / name / f"{_slug(row.name)}-{seed}-{key}",
                key=key,
                weight=row.weight,
                teacher=teacher,
            )
        )
    return jobs


def row_key(book: Book, name: str, row: Row, size: str) -> str:
    """What tells the runs of a row from those that other settings made."""
    table = book.tables[name]
    settings: dict[str, Any] = {"settings": table.settings(row, size)}
    if row.teacher is not None:
        settings["teacher"] = row_key(book, *book.source(name, table.row(row.teacher)), size)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _with_model(taught: Distillation, student: Recipe, teacher: Recipe) -> Distillation:
    """The name of the teacher's network, where it is another one."""
    return taught if teacher.model == student.model else replace(taught, teacher_model=teacher.model)


def _slug(name: str) -> str:
    """A name for a folder.

    Example:
        >>> _slug("DS-l2,1 (x0.25)")
        'ds-l2-1-x0.25'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
