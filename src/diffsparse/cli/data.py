"""`diffsparse data`: whether a data set is there, and what it holds."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from diffsparse.data import DataSet, Labelled, Part, open_data
from diffsparse.traffic.data import TrafficDataSet, TrafficPart


@dataclass(frozen=True, kw_only=True)
class Data:
    """Check that a data set is there, or download it, and say what it holds."""

    name: Positional[str]
    """digits, cifar10, cifar100, imagenet, or folder for images of your own, one folder a class; los-loop, sz-taxi-40,
    metr-la, pems-bay, synthetic-roads, or roads for speeds.csv and map.csv of your own."""
    root: Path | None = None
    """The folder it lies in; by default the variable DIFFSPARSE_DATA says it. The digits need none."""
    download: bool = False
    """Fetch CIFAR to the root if it is not there."""


def run_data(config: Data) -> None:
    """Open the data set and print its table."""
    console = Console()
    # a download has its own bar, which could not be shown within a status
    data = open_data(config.name, root=config.root, download=config.download)
    console.print(_table(data))


def _table(data: DataSet) -> Table:
    if isinstance(data, TrafficDataSet):
        return _traffic_table(data)
    table = _headed(data.name, "images", "classes", "shape", "fewest a class", "most a class")
    shape = " x ".join(map(str, data.input_shape))
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    for name, part in parts.items():
        if part is not None:
            table.add_row(name, f"{len(part):,}", str(data.num_outputs), shape, *_extremes(part, data.num_outputs))
    return table


def _traffic_table(data: TrafficDataSet) -> Table:
    table = _headed(data.name, "windows", "steps seen", "nodes", "speeds missing")
    table.caption = f"{int(data.adjacency.sum()):,} links on the map"
    for name, part in {"train": data.train, "validation": data.validation, "test": data.test}.items():
        assert isinstance(part, TrafficPart)
        missing = (part.known == 0).double().mean().item()
        table.add_row(name, f"{len(part):,}", str(data.input_shape[0]), str(data.num_outputs), f"{missing:.1%}")
    return table


def _headed(title: str, *headings: str) -> Table:
    table = Table("part", title=title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _extremes(part: Part, classes: int) -> tuple[str, str]:
    """How many entries the smallest and the largest class have."""
    if not isinstance(part, Labelled):
        return "-", "-"
    counts = part.labels.bincount(minlength=classes)
    return f"{int(counts.min()):,}", f"{int(counts.max()):,}"
