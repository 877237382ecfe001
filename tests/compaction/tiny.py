"""The smallest net in which something can die: convolution, batch norm, whatever is tested, convolution."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.capture import capture
from diffsparse.compaction.graph import Graph, Node
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise

X = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
OTHER = torch.randn(3, 3, 12, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class Tiny(nn.Module):
    """`head(between(norm(conv(x))))`."""

    def __init__(self, between: Callable[..., Any], width: int, head: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 1)
        self.norm = nn.BatchNorm2d(width)
        self.between = between
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.norm(self.conv(x))))


def tiny(
    between: Callable[..., Any] = nn.Identity(),  # noqa: B008
    *,
    dead: Sequence[int] = (),
    fixed: Sequence[int] = (),
    width: int = 8,
    head: nn.Module | int | None = None,
) -> Tiny:
    """A tiny net whose batch norm has `dead` channels at zero and `fixed` ones at their shift."""
    torch.manual_seed(0)
    if not isinstance(head, nn.Module):
        head = nn.Conv2d(head or width, 3, 1)
    model = randomise(Tiny(between, width, head))
    zero_channels(model.norm, list(dead))
    model.norm.weight.data[list(fixed)] = 0
    return model  # type: ignore[return-value]


def recorded(model: nn.Module, x: Tensor = X) -> Graph:
    return capture(model.eval(), (x,), {})[0]


def analysed(model: nn.Module, x: Tensor = X, **options: Any) -> Analysis:
    return Analysis(recorded(model, x), **options)


def node_of(graph: Graph, op: str) -> Node:
    """The only node of this operation."""
    (found,) = [node for node in graph.nodes if node.op == op]
    return found


def chosen(mask: "np.ndarray[Any, Any]") -> list[int]:
    return [int(i) for i in np.flatnonzero(mask)]


def complement(*gone: int, width: int = 8) -> list[int]:
    return [i for i in range(width) if i not in gone]
