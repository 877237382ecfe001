"""The edges of a stage: which ones are possible, and what a rule that chooses among them must provide."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from diffsparse.errors import require_number, require_whole


@dataclass(frozen=True, kw_only=True)
class StageShape:
    """The nodes of a stage: `inputs` input nodes, then `groups` groups of `outputs` nodes; the last one is the output.

    An edge runs from a group to any later one, so group g = 1, 2, ... reads `inputs + (g - 1) * outputs` nodes.

    Example:
        >>> shape = StageShape(inputs=64, outputs=128, groups=2)
        >>> shape.fan_ins, shape.usable_edges
        ((64, 192), 32768)
    """

    inputs: int
    """Number of input nodes."""
    outputs: int
    """Number of nodes in each other group."""
    groups: int
    """Number of groups after the input nodes."""

    def __post_init__(self) -> None:
        for key in ("inputs", "outputs", "groups"):
            require_whole(f"{key} of a stage", getattr(self, key), low=1)

    @property
    def sources(self) -> tuple[int, ...]:
        """Number of nodes in each group with outgoing edges, input nodes first."""
        return (self.inputs, *[self.outputs] * (self.groups - 1))

    @property
    def fan_ins(self) -> tuple[int, ...]:
        """Number of nodes that each target group reads: all groups before it."""
        return tuple(self.inputs + group * self.outputs for group in range(self.groups))

    @property
    def usable_edges(self) -> int:
        """Number of possible edges, each from a group to a later one."""
        return self.outputs * sum(self.fan_ins)

    def edge_count(self, density: float) -> float:
        r"""The number of edges of MobileNetV1 at width d = `density`, in general not a whole number:

        .. math:: k = d^2 (\text{inputs} \cdot \text{outputs} + (\text{groups} - 1)\,\text{outputs}^2)

        Example:
            >>> round(StageShape(inputs=32, outputs=64, groups=1).edge_count(0.225), 2)
            103.68
        """
        require_number("density", density, above=0, high=1)
        full = self.inputs * self.outputs + (self.groups - 1) * self.outputs**2
        # exact decimals: in binary, 0.1 squared is above 0.01 and would round up to one edge more
        return float(Fraction(str(density)) ** 2 * full)


class Edges(nn.Module, ABC):
    """The edges of one stage. It owns their weights; calling it returns one matrix per target group."""

    @abstractmethod
    def forward(self) -> tuple[Tensor, ...]:
        """Matrices of shape (outputs, fan-in), one row per target node; a missing edge is exactly zero."""

    @abstractmethod
    def weights(self) -> Sequence[nn.Parameter]:
        """The free parameters behind the matrices, in the same shapes."""

    @torch.no_grad()
    def start(self, shape: StageShape) -> None:
        """Draw all weights from U(-b, b) with b = 1 / sqrt(number of nodes with outgoing edges).

        Like the public code of Discovering Neural Wirings, all groups of a stage share one bound, so that no group has
        a head start when magnitudes are ranked over the stage.
        """
        bound = 1 / math.sqrt(sum(shape.sources))
        for weight in self.weights():
            weight.uniform_(-bound, bound)
            # about one draw in ten million is exactly zero; a gate gets no gradient there and would never leave
            weight.masked_fill_(weight == 0, bound * torch.finfo(weight.dtype).eps)


class EdgeRule(ABC):
    """How a network chooses its edges; pass one to a `WiredStage` or to a model that contains wired stages."""

    @abstractmethod
    def edges(self, shape: StageShape) -> Edges:
        """The edges of a new stage, randomly initialised."""
