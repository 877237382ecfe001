"""One part of a traffic data set: windows of past speeds and the speeds that follow."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.data.part import Batch, Part, Share, as_slice
from diffsparse.errors import SparsityError, require_whole


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficPart(Part):
    """Every window of `history` steps that lies in this part together with the step after it.

    Inputs are (N, history, nodes), targets (N, nodes) with 0 for a missing speed, both float32 in the units of the
    file.

    Example:
        >>> steps = torch.tensor([[10.0], [20.0], [30.0]])
        >>> part = TrafficPart(speeds=steps, known=steps, history=2)
        >>> [(inputs.tolist(), targets.tolist()) for inputs, targets in part.in_order(4)]
        [([[[10.0], [20.0]]], [[30.0]])]
    """

    speeds: Tensor
    """(steps, nodes) float32, missing ones filled in."""
    known: Tensor
    """(steps, nodes) float32, 0 where a speed is missing."""
    history: int
    """How many past steps a model sees."""

    def __post_init__(self) -> None:
        require_whole("history", self.history, low=1)
        if self.speeds.dim() != 2 or self.speeds.shape != self.known.shape:
            raise SparsityError(
                "speeds and known must have the same shape (steps, nodes), "
                f"got {tuple(self.speeds.shape)} and {tuple(self.known.shape)}"
            )
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
