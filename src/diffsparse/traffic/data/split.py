"""Chronological parts, and what stands in for missing speeds in them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.errors import SparsityError, require_whole
from diffsparse.traffic.data.speeds import Speeds
from diffsparse.traffic.data.windows import TrafficPart

TRAINING_SHARE = 0.8
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Training, validation and test part, and the statistics of the first."""

    train: TrafficPart
    """The first 80 % of the steps without the validation part."""
    validation: TrafficPart
    """The last 10 % of the first 80 %."""
    test: TrafficPart
    """The last 20 %."""
    mean: float
    """Of the known speeds of the training part."""
    std: float
    """Of the same; 1 if they are all alike."""


def split(speeds: Speeds, history: int) -> Parts:
    """Cut the steps into three parts; a window lies in one part, and nothing of a later one is used for it.

    A missing speed is filled in with the last one seen in its part, or the node's mean in the training part.
    """
    require_whole("history", history, low=1)
    steps = len(speeds.values)
    test = int(TRAINING_SHARE * steps)
    validation = test - int(VALIDATION_SHARE * test)
    cuts = {"training": (0, validation), "validation": (validation, test), "test": (test, steps)}
    for name, (start, end) in cuts.items():
        if end - start <= history:
            raise SparsityError(
                f"{steps} steps are too few: the {name} part has {end - start}, "
                f"and a window takes {history} past steps and the next"
            )
        if not bool((speeds.values[start + history : end] > 0).any()):
            raise SparsityError(
                f"the {name} part, steps {start + 1} to {end} of {steps}, has no known speed to forecast"
            )
    first = speeds.values[:validation]
    means = _node_means(speeds.names, first)
    parts = [
        TrafficPart(speeds=filled(part, means).float(), known=part.float(), history=history)
        for part in (speeds.values[start:end] for start, end in cuts.values())
    ]
    known = first[first > 0]
    std = known.std(correction=0).item()
    return Parts(train=parts[0], validation=parts[1], test=parts[2], mean=known.mean().item(), std=std or 1.0)


def filled(values: Tensor, means: Tensor) -> Tensor:
    """Missing speeds of (steps, nodes) replaced by the last one seen, before the first by the node's mean.

    Example:
        >>> filled(torch.tensor([[0.0], [20.0], [0.0], [0.0], [30.0]]), torch.tensor([25.0])).flatten()
        tensor([25., 20., 20., 20., 30.])
    """
    steps = torch.arange(1, len(values) + 1).unsqueeze(1)
    seen = torch.where(values > 0, steps, 0).cummax(0).values
    return torch.cat([means.unsqueeze(0), values]).gather(0, seen)


def _node_means(names: tuple[str, ...], values: Tensor) -> Tensor:
    known = (values > 0).sum(0)
    if not bool(known.all()):
        name = names[int(known.argmin())]
        raise SparsityError(f"node '{name}' has no speed in the {len(values)} steps of the training part")
    return values.sum(0) / known
