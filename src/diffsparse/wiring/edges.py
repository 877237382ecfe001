"""Which edges a stage could have, how many of them a narrower MobileNet has, and who decides on those that it keeps."""

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
    """How many nodes a stage has: `inputs`, then `groups` times `outputs`, the last group being its output.

    An edge runs from a group to any strictly later one: group g, from 1, reads `inputs + (g - 1) outputs` nodes.

    Example:
        >>> shape = StageShape(inputs=64, outputs=128, groups=2)
        >>> shape.fan_ins, shape.usable_edges
        ((64, 192), 32768)
    """

    inputs: int
    """Input nodes."""
    outputs: int
    """Nodes of each interior group and of the output group."""
    groups: int
    """Groups behind the input nodes."""

    def __post_init__(self) -> None:
        for key in ("inputs", "outputs", "groups"):
            require_whole(f"{key} of a stage", getattr(self, key), low=1)

    @property
    def sources(self) -> tuple[int, ...]:
        """Nodes of each group that has outgoing edges, the input nodes first."""
        return (self.inputs, *[self.outputs] * (self.groups - 1))

    @property
    def fan_ins(self) -> tuple[int, ...]:
        """Nodes that each target group reads: all groups before it."""
        return tuple(self.inputs + group * self.outputs for group in range(self.groups))

    @property
    def usable_edges(self) -> int:
        """Edges from a group to a later one."""
        return self.outputs * sum(self.fan_ins)

    @property
    def tensor_entries(self) -> int:
        """Entries of one matrix from all nodes with outgoing to all nodes with incoming edges, usable or not."""
        return self.outputs * self.groups * sum(self.sources)

    def edge_count(self, density: float) -> float:
        r"""The edges of MobileNetV1 at width `density`, :math:`k = d^2 (\text{inputs} \cdot \text{outputs} +
        (\text{groups} - 1)\,\text{outputs}^2)`; not a whole number in general.

        Example:
            >>> round(StageShape(inputs=32, outputs=64, groups=1).edge_count(0.225), 2)
            103.68
        """
        require_number("density", density, above=0, high=1)
        full = self.inputs * self.outputs + (self.groups - 1) * self.outputs**2
        # the number as it was written: the square of 0.1 in binary is above 0.01 and would round up to one edge more
        return float(Fraction(str(density)) ** 2 * full)

    def kept_edges(self, density: float) -> int:
        """How many edges are kept at this density: `edge_count`, rounded up."""
        return math.ceil(self.edge_count(density))


class Edges(nn.Module, ABC):
    """The edges of one stage: owns their weights; calling it gives one matrix for each target group."""

    @abstractmethod
    def forward(self) -> tuple[Tensor, ...]:
        """Matrices of shape (outputs, fan-in), a row a target node; an edge that is not there is exactly zero."""

    @abstractmethod
    def weights(self) -> Sequence[nn.Parameter]:
        """The free parameters behind the matrices, of the same shapes."""

    @torch.no_grad()
    def start(self, shape: StageShape) -> None:
        """Draw all weights from U(-b, b) with b = 1 / sqrt(nodes with outgoing edges), as a convolution starts.

        The bound is that of the whole stage, as in the public code of Discovering Neural Wirings: edges of all target
        groups are drawn alike, so that no group has a head start when magnitudes are ranked over the stage.
        """
        bound = 1 / math.sqrt(sum(shape.sources))
        for weight in self.weights():
            weight.uniform_(-bound, bound)
            # one draw in some ten million is exactly zero, where a gate gets no gradient and stays
            weight.masked_fill_(weight == 0, bound * torch.finfo(weight.dtype).eps)


class EdgeRule(ABC):
    """How a network decides on its edges; give one to a `WiredStage`, or to a model of them."""

    @abstractmethod
    def edges(self, shape: StageShape) -> Edges:
        """The edges of a new stage under this rule, at their random start."""
