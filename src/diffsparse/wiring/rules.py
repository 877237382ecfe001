"""The edges of a stage and the rules that choose them: learned thresholds, the k largest, proximal steps, random."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.gates import SignedGate
from diffsparse.penalties import L1, ExclusiveL12, Norm, ProximalStep


@dataclass(frozen=True, kw_only=True)
class StageShape:
    """The nodes of a stage: `inputs` input nodes, then `groups` groups of `outputs` nodes; the last one is the output.

    An edge runs from a group to any later one, so group g = 1, 2, ... reads `inputs + (g - 1) * outputs` nodes.
    """

    inputs: int
    outputs: int
    groups: int

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

        One bound for all groups, as in the public code of Discovering Neural Wirings: no group has a head start when
        magnitudes are ranked over the stage.
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


@dataclass(frozen=True, kw_only=True)
class Differentiable(EdgeRule):
    r"""The paper's rule: the incoming edges of a node compete under a learned threshold,

    .. math:: w_{u,v} = \mathrm{sign}(\alpha_{u,v})\,\bigl(|\alpha_{u,v}| - \sigma(\beta_v)\|\alpha_{:,v}\|_1\bigr)_+

    There is one `SignedGate` per target group and one `beta` per target node; the norm covers usable edges only. Add
    `ds.Penalty(model, strength=...)` to the loss.
    """

    rgf: float | None = 0.1
    """`elu_alpha` of rectified gradient flow, which lets dropped edges come back; None for a plain relu."""

    def edges(self, shape: StageShape) -> Edges:
        return GatedEdges(shape, self.rgf)


@dataclass(frozen=True, kw_only=True)
class Plain(EdgeRule):
    """Every usable edge is an ordinary weight."""

    def edges(self, shape: StageShape) -> Edges:
        return PlainEdges(shape)


@dataclass(frozen=True, kw_only=True)
class Proximal(Plain):
    """Ordinary weights that a proximal step shrinks to zero after each optimiser step; call `attach`."""

    norm: Norm = field(default_factory=L1)
    """`L1()` (Eq. 3), or `ExclusiveL12()` (Eq. 7) with the incoming edges of each node as a group."""
    strength: float
    """Lambda; not comparable to the strength of a penalty on gates."""

    def __post_init__(self) -> None:
        if not isinstance(self.norm, L1 | ExclusiveL12):
            raise SparsityError(f"the norm of Proximal edges must be L1() or ExclusiveL12(), got {self.norm!r}")
        require_number("strength", self.strength, low=0)

    def attach(self, model: nn.Module, optimizer: Optimizer) -> ProximalStep:
        """Hook the optimiser: from now on, each of its steps ends with a proximal step on all edges of `model`."""
        weights = [w for edges in model.modules() if type(edges) is PlainEdges for w in edges.weights()]
        if not weights:
            raise SparsityError(f"{type(model).__name__} has no stage with Proximal edges to shrink")
        return ProximalStep(optimizer, weights, self.norm, self.strength)


@dataclass(frozen=True, kw_only=True)
class FixedCount(EdgeRule):
    """Base of rules that keep the same number of edges throughout training; give `density` or `zeros`, not both."""

    density: float | None = None
    """d: keep as many edges as MobileNetV1 has at width d (`StageShape.edge_count`), rounded up."""
    zeros: float | None = None
    """Share of the usable edges to drop; the number that stays is rounded to the nearest."""

    def __post_init__(self) -> None:
        if (self.density is None) == (self.zeros is None):
            raise SparsityError(f"{type(self).__name__} needs either density= or zeros=, got {self}")
        if self.density is not None:
            require_number("density", self.density, above=0, high=1)
        if self.zeros is not None:
            require_number("zeros", self.zeros, low=0, high=1)

    def kept_edges(self, shape: StageShape) -> int:
        """How many edges a stage of this shape keeps."""
        if self.density is not None:
            return math.ceil(shape.edge_count(self.density))
        kept = round((1 - cast(float, self.zeros)) * shape.usable_edges)
        if kept < 1:
            raise SparsityError(f"zeros={self.zeros:g} leaves none of the {shape.usable_edges} edges of a stage")
        return kept


@dataclass(frozen=True, kw_only=True)
class TopK(FixedCount):
    """Discovering Neural Wirings: each forward pass uses the k edges of the stage with the largest magnitudes.

    Only usable edges are ranked. (The public code also ranks unusable matrix entries, which take some of the k places.)
    """

    update: bool = True
    """Whether unused edges also get a gradient, as if they were used."""

    def edges(self, shape: StageShape) -> Edges:
        return LargestEdges(shape, self.kept_edges(shape), update=self.update)


@dataclass(frozen=True, kw_only=True)
class FixedRandom(FixedCount):
    """Train k edges drawn at random when the stage is built; `torch.manual_seed` determines which."""

    def edges(self, shape: StageShape) -> Edges:
        return RandomEdges(shape, self.kept_edges(shape))


class GatedEdges(Edges):
    """Edges whose weights are the values of signed gates, one gate per target group."""

    def __init__(self, shape: StageShape, rgf: float | None) -> None:
        super().__init__()
        self.gates = nn.ModuleList(SignedGate((shape.outputs, fan_in), rgf=rgf) for fan_in in shape.fan_ins)
        self.start(shape)

    def weights(self) -> Sequence[nn.Parameter]:
        return [cast(SignedGate, gate).alpha for gate in self.gates]

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(gate() for gate in self.gates)


class PlainEdges(Edges):
    """Edges that are ordinary weights: an edge is missing only where its weight was set to zero."""

    def __init__(self, shape: StageShape) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.empty(shape.outputs, fan_in) for fan_in in shape.fan_ins)
        self.start(shape)

    def weights(self) -> Sequence[nn.Parameter]:
        return list(self.matrices)

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(self.matrices)

    def _masks(self, chosen: Tensor) -> list[Tensor]:
        """One mask per matrix that is True for the `chosen` edges, numbered across all matrices of the stage."""
        sizes = [matrix.numel() for matrix in self.matrices]
        mask = torch.zeros(sum(sizes), dtype=torch.bool, device=chosen.device)
        mask[chosen] = True
        return [part.view_as(m) for part, m in zip(torch.split_with_sizes(mask, sizes), self.matrices, strict=True)]


class LargestEdges(PlainEdges):
    """The `kept` edges with the largest magnitudes of the stage; the others are zero in the forward pass."""

    def __init__(self, shape: StageShape, kept: int, *, update: bool) -> None:
        super().__init__(shape)
        self.kept, self.update = kept, update
        # saved with the weights: the same weights with another number of edges are another network
        self.register_buffer("edge_count", torch.tensor(kept))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.kept = int(self.get_buffer("edge_count"))

    def forward(self) -> tuple[Tensor, ...]:
        magnitudes = torch.cat([weight.detach().flatten().abs() for weight in self.matrices])
        pairs = zip(self.matrices, self._masks(magnitudes.topk(self.kept, sorted=False).indices), strict=True)
        if self.update:
            # w - w for an unused edge: exactly zero, with the gradient of w
            return tuple(weight - weight.detach().masked_fill(mask, 0.0) for weight, mask in pairs)
        return tuple(weight.masked_fill(~mask, 0.0) for weight, mask in pairs)

    def extra_repr(self) -> str:
        return f"kept={self.kept}, update={self.update}"


class RandomEdges(PlainEdges):
    """`kept` edges drawn once, uniformly over the stage; the others are zero and get no gradient."""

    def __init__(self, shape: StageShape, kept: int) -> None:
        super().__init__(shape)
        for group, mask in enumerate(self._masks(torch.randperm(shape.usable_edges)[:kept])):
            self.register_buffer(f"there_{group}", mask)

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(w.masked_fill(~self.get_buffer(f"there_{group}"), 0.0) for group, w in enumerate(self.matrices))
