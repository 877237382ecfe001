"""Traffic as a data set: past speeds of every node in, the next speed of every node out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from diffsparse.data.dataset import Batch, DataSet, DataSummary, Draws, Part, Share, as_slice
from diffsparse.errors import SparsityError, require_whole
from diffsparse.traffic.reading import Speeds

HISTORY = 8
TRAINING_SHARE = 0.8
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficPart(Part):
    """Every window of `history` steps whose next step also lies in this part.

    Inputs are (N, history, nodes) and targets (N, nodes), float32 in the units of the file; a target of 0 is missing.

    Example:
        >>> steps = torch.tensor([[10.0], [20.0], [30.0]])
        >>> part = TrafficPart(speeds=steps, known=steps, history=2)
        >>> [(inputs.tolist(), targets.tolist()) for inputs, targets in part.in_order(4)]
        [([[[10.0], [20.0]]], [[30.0]])]
    """

    speeds: Tensor
    """(steps, nodes) float32, with missing speeds filled in."""
    known: Tensor
    """(steps, nodes) float32, 0 where a speed is missing."""
    history: int

    def __post_init__(self) -> None:
        require_whole("history", self.history, low=1)
        if self.speeds.dim() != 2 or self.speeds.shape != self.known.shape:
            shapes = f"{tuple(self.speeds.shape)} and {tuple(self.known.shape)}"
            raise SparsityError(f"speeds and known must have the same shape (steps, nodes), got {shapes}")
        if len(self.speeds) <= self.history:
            raise SparsityError(f"{len(self.speeds)} steps are too few for {self.history} past ones and the next")

    def __len__(self) -> int:
        return len(self.speeds) - self.history

    def make_batches(self, batches: list[range], order: Tensor, share: Share, drawn_by: Draws) -> Iterator[Batch]:
        past = torch.arange(self.history)
        for positions in batches:
            starts = order[as_slice(positions)]
            yield self.speeds[starts.unsqueeze(1) + past], self.known[starts + self.history]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficDataSet(DataSet):
    """A data set of speeds with the map of its nodes."""

    train: TrafficPart
    validation: TrafficPart
    test: TrafficPart
    task: str = "forecasting"
    adjacency: Tensor
    """(nodes, nodes) bool, the given map: True where two nodes are linked, never on the diagonal."""
    mean: float
    std: float
    """Mean and standard deviation of the known training speeds."""
    node_names: tuple[str, ...]
    positions: Tensor | None = None
    """(nodes, 2): where the nodes are, if known."""

    def summary(self) -> DataSummary:
        """Windows, nodes and missing speeds of each part, and the number of links on the map."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        history, nodes = map(str, self.input_shape)
        return DataSummary(
            headings=("windows", "steps seen", "nodes", "speeds missing"),
            rows={
                name: (f"{len(part):,}", history, nodes, f"{(part.known == 0).double().mean().item():.1%}")
                for name, part in parts.items()
            },
            caption=f"{int(self.adjacency.sum()):,} links on the map",
        )


def traffic_data(
    name: str, speeds: Speeds, adjacency: Tensor, *, history: int = HISTORY, positions: Tensor | None = None
) -> TrafficDataSet:
    """A data set of these speeds, as `split` cuts it, with the map `adjacency` (nodes, nodes)."""
    nodes = len(speeds.names)
    if adjacency.shape != (nodes, nodes):
        raise SparsityError(f"{name}: the speeds are of {nodes} nodes, the map is {tuple(adjacency.shape)}")
    return TrafficDataSet(
        name=name,
        **split(speeds, history)._asdict(),
        input_shape=(history, nodes),
        num_outputs=nodes,
        adjacency=adjacency.bool() & ~torch.eye(nodes, dtype=torch.bool),
        node_names=speeds.names,
        positions=positions,
    )


class Parts(NamedTuple):
    """The three parts in order of time; mean and standard deviation (1 if it is 0) of the known training speeds."""

    train: TrafficPart
    validation: TrafficPart
    test: TrafficPart
    mean: float
    std: float


def split(speeds: Speeds, history: int) -> Parts:
    """Cut the steps into three parts: the first 80 % to train on, the last tenth of these to validate, 20 % to test.

    No window crosses a border, and no part uses later data: a missing speed is replaced by the last one seen in its
    part, or else by the node's mean in the training part.
    """
    require_whole("history", history, low=1)
    steps = len(speeds.values)
    test = int(TRAINING_SHARE * steps)
    validation = test - int(VALIDATION_SHARE * test)
    cuts = {"training": (0, validation), "validation": (validation, test), "test": (test, steps)}
    for name, (start, end) in cuts.items():
        if end - start <= history:
            window = f"a window takes {history} past steps and the next"
            raise SparsityError(f"{steps} steps are too few: the {name} part has {end - start}, and {window}")
        if not bool((speeds.values[start + history : end] > 0).any()):
            where = f"steps {start + 1} to {end} of {steps}"
            raise SparsityError(f"the {name} part, {where}, has no known speed to forecast")
    first = speeds.values[:validation]
    counts = (first > 0).sum(0)
    if not bool(counts.all()):
        node = speeds.names[int(counts.argmin())]
        raise SparsityError(f"node '{node}' has no speed in the {len(first)} steps of the training part")
    means = first.sum(0) / counts
    train, valid, held_out = (
        TrafficPart(speeds=filled(part, means).float(), known=part.float(), history=history)
        for part in (speeds.values[start:end] for start, end in cuts.values())
    )
    known = first[first > 0]
    return Parts(train, valid, held_out, known.mean().item(), known.std(correction=0).item() or 1.0)


def filled(values: Tensor, means: Tensor) -> Tensor:
    """Replace missing speeds (steps, nodes) by the last one seen, or before the first one by the node's mean."""
    steps = torch.arange(1, len(values) + 1).unsqueeze(1)
    seen = torch.where(values > 0, steps, 0).cummax(0).values
    return torch.cat([means.unsqueeze(0), values]).gather(0, seen)
