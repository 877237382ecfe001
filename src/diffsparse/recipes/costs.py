"""What a size costs on an accelerator: a counted estimate, nothing is run."""

from collections.abc import Iterable
from dataclasses import dataclass

from diffsparse.recipes.book import Book
from diffsparse.recipes.jobs import Job, row_jobs
from diffsparse.recipes.networks import FLOAT, network_cost

PASSES = 3
"""Forward passes that a step costs: the backward pass counts as two."""
STATES = 3
"""Numbers per parameter on the device: weight, gradient, momentum."""
FILES = 6
"""Copies of the weights on the disk: two checkpoints with momentum, the trained and the compact network."""


@dataclass(frozen=True, kw_only=True)
class TableCost:
    """What all runs of a table cost together."""

    runs: int
    flops: float
    """Operations of all steps, 2 per multiply-accumulate."""
    hours: float
    """On one device."""
    hours_on_all: float
    """On all devices of the accelerator together, by the clock."""
    memory: float
    """Gigabytes on the device, for the largest network and the whole batch on one."""
    disk: float
    """Gigabytes of all runs, without the data."""


def table_cost(book: Book, name: str, size: str) -> TableCost | None:
    """The cost of a table at this size, without runs that belong to another table; None if there are none."""
    rows = [row for row in book.tables[name].rows if row.of is None]
    jobs = [job for row in rows for job in row_jobs(book, name, row, size)]
    if not jobs:
        return None
    machine = book.cover.accelerator
    flops = [job_flops(book, job) for job in jobs]
    seconds = sum(own / machine.throughput[job.recipe.data] for own, job in zip(flops, jobs, strict=True))
    costs = [network_cost(job.recipe, book.cover.data[job.recipe.data]) for job in jobs]
    return TableCost(
        runs=len(jobs),
        flops=sum(flops),
        hours=seconds / 3600,
        hours_on_all=seconds / 3600 / machine.devices / machine.efficiency,
        memory=max(_memory(cost.params, cost.activation_bytes, job) for cost, job in zip(costs, jobs, strict=True)),
        disk=sum(FILES * FLOAT * cost.params for cost in costs) / 1e9,
    )


def job_flops(book: Book, job: Job) -> float:
    """Operations of all training steps of a run; the network counts as whole to the end."""
    data = book.cover.data[job.recipe.data]
    inputs = data.train * job.epochs
    flops = 2.0 * network_cost(job.recipe, data).macs * PASSES * inputs
    if job.teacher is not None:
        flops += 2.0 * network_cost(job.teacher.recipe, data).macs * inputs
    return flops


def all_costs(book: Book, names: Iterable[str], size: str) -> dict[str, TableCost]:
    """The cost of each table that has runs of its own."""
    found = {name: table_cost(book, name, size) for name in names}
    return {name: cost for name, cost in found.items() if cost is not None}


def _memory(params: int, activation_bytes: int, job: Job) -> float:
    batch = job.recipe.batch_size // job.recipe.optimisation.accumulate
    return (STATES * FLOAT * params + batch * activation_bytes) / 1e9
