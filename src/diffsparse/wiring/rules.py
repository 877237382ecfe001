"""Rules that decide on the edges of a stage: learned thresholds, the largest k, proximal steps, chance."""

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
    r"""The paper's rule: incoming edges of a node compete under a learned threshold,

    .. math:: w_{u,v} = \mathrm{sign}(\alpha_{u,v})\,\bigl(|\alpha_{u,v}| - \sigma(\beta_v)\|\alpha_{:,v}\|_1\bigr)_+

    One `SignedGate` a target group, one `beta` a target node, only usable edges in the norm. Add `ds.Penalty(model,
    strength=...)` to the loss.
    """

    rgf: float | None = 0.1
    """`elu_alpha` of rectified gradient flow, with which edges come back; None for plain relu."""

    def edges(self, shape: StageShape) -> Edges:
        edges = GatedEdges(SignedGate((shape.outputs, fan_in), rgf=self.rgf) for fan_in in shape.fan_ins)
        edges.start(shape)
        return edges


@dataclass(frozen=True, kw_only=True)
class TopK(EdgeRule):
    """Discovering Neural Wirings: in each forward pass the k largest edges of the stage, by magnitude, are there.

    Only usable edges are ranked. (The public code ranks unusable entries of its matrix with them, which then take some
    of the k places.)
    """

    density: float
    """d, for the edge count of MobileNetV1 at width d (`StageShape.edge_count`)."""
    update: bool = True
    """Whether the gradient flows to the other edges, too, as if they were there."""

    def __post_init__(self) -> None:
        require_number("density", self.density, above=0, high=1)

    def edges(self, shape: StageShape) -> Edges:
        return LargestEdges(shape, shape.kept_edges(self.density), update=self.update)


@dataclass(frozen=True, kw_only=True)
class Proximal(EdgeRule):
    """Plain weights that a proximal step after each step of the optimiser shrinks to zero: call `attach`."""

    norm: Norm = field(default_factory=L1)
    """`L1()` (Eq. 3), or `ExclusiveL12()` (Eq. 7), whose groups are the incoming edges of a node."""
    strength: float
    """lambda; not comparable with that of a penalty on gates."""

    def __post_init__(self) -> None:
        if not isinstance(self.norm, L1 | ExclusiveL12):
            raise SparsityError(f"the norm of Proximal edges is L1() or ExclusiveL12(), got {self.norm!r}")
        require_number("strength", self.strength, low=0)

    def edges(self, shape: StageShape) -> Edges:
        return PlainEdges(shape)

    def attach(self, model: nn.Module, optimizer: Optimizer) -> ProximalStep:
        """Hook the optimiser: from now on each of its steps ends with the proximal one on every edge of `model`."""
        weights = [w for edges in model.modules() if type(edges) is PlainEdges for w in edges.weights()]
        if not weights:
            raise SparsityError(f"{type(model).__name__} has no stage with Proximal edges to shrink")
        return ProximalStep(optimizer, weights, self.norm, self.strength)


@dataclass(frozen=True, kw_only=True)
class FixedRandom(EdgeRule):
    """k edges drawn at random when the stage is built, trained as they are; `torch.manual_seed` decides which."""

    density: float
    """d, for the edge count of MobileNetV1 at width d (`StageShape.edge_count`)."""

    def __post_init__(self) -> None:
        require_number("density", self.density, above=0, high=1)

    def edges(self, shape: StageShape) -> Edges:
        return RandomEdges(shape, shape.kept_edges(self.density))


class GatedEdges(Edges):
    """Edges that are the values of signed gates, one gate a target group."""

    def __init__(self, gates: Iterable[SignedGate]) -> None:
        super().__init__()
        self.gates = nn.ModuleList(gates)

    def weights(self) -> Sequence[nn.Parameter]:
        return [cast(SignedGate, gate).alpha for gate in self.gates]

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(gate() for gate in self.gates)


class PlainEdges(Edges):
    """Edges that are their weights, all of them there until somebody writes a zero."""

    def __init__(self, shape: StageShape) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.empty(shape.outputs, fan_in) for fan_in in shape.fan_ins)
        self.start(shape)

    def weights(self) -> Sequence[nn.Parameter]:
        return list(self.matrices)

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(self.matrices)


class LargestEdges(PlainEdges):
    """The `kept` edges of largest magnitude over the whole stage; the others are zero in the forward pass."""

    def __init__(self, shape: StageShape, kept: int, *, update: bool) -> None:
        super().__init__(shape)
        self.kept, self.update = kept, update
        # in files as well: with the same weights another number of edges is another network
        self.register_buffer("edge_count", torch.tensor(kept))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.kept = int(self.get_buffer("edge_count"))

    def forward(self) -> tuple[Tensor, ...]:
        there = self._there()
        if self.update:
            # w - w where an edge is not there: exactly zero, with the gradient of w
            return tuple(
                weight - weight.detach().masked_fill(mask, 0.0)
                for weight, mask in zip(self.matrices, there, strict=True)
            )
        return tuple(weight.masked_fill(~mask, 0.0) for weight, mask in zip(self.matrices, there, strict=True))

    @torch.no_grad()
    def _there(self) -> tuple[Tensor, ...]:
        magnitudes = torch.cat([weight.flatten().abs() for weight in self.matrices])
        largest = magnitudes.topk(self.kept, sorted=False).indices
        return _masks(largest, self.matrices)

    def extra_repr(self) -> str:
        return f"kept={self.kept}, update={self.update}"


class RandomEdges(PlainEdges):
    """`kept` edges drawn once, uniformly over the whole stage; the others are zero and get no gradient."""

    def __init__(self, shape: StageShape, kept: int) -> None:
        super().__init__(shape)
        drawn = torch.randperm(shape.usable_edges)[:kept]
        for group, mask in enumerate(_masks(drawn, self.matrices)):
            self.register_buffer(f"there_{group}", mask)

    def forward(self) -> tuple[Tensor, ...]:
        masks = (self.get_buffer(f"there_{group}") for group in range(len(self.matrices)))
        return tuple(weight.masked_fill(~mask, 0.0) for weight, mask in zip(self.matrices, masks, strict=True))


def _masks(chosen: Tensor, like: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Masks of the shapes of `like` that hold at the `chosen` positions of all of them laid end to end."""
    matrices = list(like)
    mask = torch.zeros(sum(m.numel() for m in matrices), dtype=torch.bool, device=chosen.device)
    mask[chosen] = True
    parts = torch.split_with_sizes(mask, [m.numel() for m in matrices])
    return tuple(part.view_as(m) for part, m in zip(parts, matrices, strict=True))
