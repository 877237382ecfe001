"""`diffsparse data`: whether a data set is there, and what it holds."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from diffsparse.data import open_data


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
    summary = data.summary()
    table = Table("part", title=data.name, caption=summary.caption)
    for heading in summary.headings:
        table.add_column(heading, justify="right")
    for part, cells in summary.rows.items():
        table.add_row(part, *cells)
    console.print(table)
