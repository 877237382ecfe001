"""The training, validation and test parts of a traffic data set: windows of past speeds and the speeds that follow."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.data.part import Batch, Part, Share, as_slice
from diffsparse.errors import SparsityError, require_whole
from diffsparse.traffic.data.reading import Speeds

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
    """Number of past steps that a model sees."""

    def __post_init__(self) -> None:
        require_whole("history", self.history, low=1)
        if self.speeds.dim() != 2 or self.speeds.shape != self.known.shape:
            shapes = f"{tuple(self.speeds.shape)} and {tuple(self.known.shape)}"
            raise SparsityError(f"speeds and known must have the same shape (steps, nodes), got {shapes}")
        if len(self.speeds) <= self.history:
            raise SparsityError(f"{len(self.speeds)} steps are too few for {self.history} past ones and the next")

    def __len__(self) -> int:
        return len(self.speeds) - self.history

    def make_batches(
        self, batches: list[range], order: Tensor, share: Share, drawn_by: tuple[int, int] | None
    ) -> Iterator[Batch]:
        past = torch.arange(self.history)
        for positions in batches:
            starts = order[as_slice(positions)]
            yield self.speeds[starts.unsqueeze(1) + past], self.known[starts + self.history]


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The three parts in order of time, and the statistics of the first."""

    train: TrafficPart
    """The first 80 % of the steps, without the validation part."""
    validation: TrafficPart
    """The last 10 % of the first 80 %."""
    test: TrafficPart
    """The last 20 %."""
    mean: float
    std: float
    """Mean and standard deviation of the known training speeds; the latter is 1 if they are all equal."""


def split(speeds: Speeds, history: int) -> Parts:
    """Cut the steps into three parts, so that no window crosses a border and no part uses later data.

    A missing speed is replaced by the last one seen in its part, or else by the node's mean in the training part.
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
            raise SparsityError(
                f"the {name} part, steps {start + 1} to {end} of {steps}, has no known speed to forecast"
            )
    first = speeds.values[:validation]
    counts = (first > 0).sum(0)
    if not bool(counts.all()):
        node = speeds.names[int(counts.argmin())]
        raise SparsityError(f"node '{node}' has no speed in the {len(first)} steps of the training part")
    train, valid, held_out = (
        TrafficPart(speeds=filled(part, first.sum(0) / counts).float(), known=part.float(), history=history)
        for part in (speeds.values[start:end] for start, end in cuts.values())
    )
    known = first[first > 0]
    std = known.std(correction=0).item()
    return Parts(train=train, validation=valid, test=held_out, mean=known.mean().item(), std=std or 1.0)


def filled(values: Tensor, means: Tensor) -> Tensor:
    """Replace missing speeds (steps, nodes) by the last one seen, or before the first one by the node's mean.

    Example:
        >>> filled(torch.tensor([[0.0], [20.0], [0.0], [0.0], [30.0]]), torch.tensor([25.0])).flatten()
        tensor([25., 20., 20., 20., 30.])
    """
    steps = torch.arange(1, len(values) + 1).unsqueeze(1)
    seen = torch.where(values > 0, steps, 0).cummax(0).values
    return torch.cat([means.unsqueeze(0), values]).gather(0, seen)
