"""Rules that choose the edges of a stage: learned thresholds, the k largest, proximal steps, a random draw."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.errors import SparsityError, require_number
from diffsparse.gates import SignedGate
from diffsparse.penalties import L1, ExclusiveL12, Norm, ProximalStep
from diffsparse.wiring.edges import EdgeRule, Edges, StageShape


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
        edges = GatedEdges(SignedGate((shape.outputs, fan_in), rgf=self.rgf) for fan_in in shape.fan_ins)
        edges.start(shape)
        return edges


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
        else:
            require_number("zeros", self.zeros, low=0, high=1)

    def kept_edges(self, shape: StageShape) -> int:
        """How many edges a stage of this shape keeps.

        Example:
            >>> shape = StageShape(inputs=4, outputs=8, groups=1)
            >>> TopK(zeros=0.9).kept_edges(shape), TopK(density=0.35).kept_edges(shape)
            (3, 4)
        """
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

    def __init__(self, gates: Iterable[SignedGate]) -> None:
        super().__init__()
        self.gates = nn.ModuleList(gates)

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
