"""Ways of choosing the edges of a wired network, in the form the training loop wants."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.errors import SparsityError, require_number
from diffsparse.gating import Count
from diffsparse.methods import Method, NetworkKind, Sparsifying, register_method
from diffsparse.methods.gated import Gated
from diffsparse.methods.proximal import Proximal, named_norm
from diffsparse.penalties import L1, Norm, Penalty, ProximalStep, Regulariser
from diffsparse.wiring.costs import wiring_cost
from diffsparse.wiring.edges import EdgeRule
from diffsparse.wiring.report import learned_wiring
from diffsparse.wiring.rules import Differentiable, FixedRandom, Plain, TopK
from diffsparse.wiring.stage import wired_stages


class Wired(Method):
    """All edges are there and stay; the base of the others, which choose another rule for the edges.

    Edges that the fresh network brings are replaced by new ones, at their random start.
    """

    def rule(self) -> EdgeRule:
        """What decides on the edges of every stage."""
        return Plain()

    def prepare(self, model: nn.Module) -> nn.Module:
        stages = wired_stages(model)
        if not stages:
            raise SparsityError(f"{type(self).__name__} is about edges, and {type(model).__name__} has no WiredStage")
        for stage in stages:
            place = next(stage.parameters()).device
            stage.edges = self.rule().edges(stage.shape).to(place)
        return model

    @torch.no_grad()
    def zeros(self, model: nn.Module) -> Count:
        """Usable edges that are not there."""
        matrices = [matrix for stage in wired_stages(model) for matrix in stage.edges()]
        return Count(zero=sum(int((m == 0).sum()) for m in matrices), total=sum(m.numel() for m in matrices))

    def figures(self, model: nn.Module) -> dict[str, Any]:
        zeros = self.zeros(model)
        return {"edges": zeros.total - zeros.zero}

    def live_macs(self, model: nn.Module, example: Tensor) -> int | None:
        """MACs of the live graph; of the compact network where the stages are not a chain."""
        graph = learned_wiring(model)
        if graph is None:
            return super().live_macs(model, example)
        return wiring_cost(graph, example.shape[-1], recursive=True).mult_adds


@dataclass(frozen=True, kw_only=True)
class WiredGates(Wired):
    """Differentiable sparsification: edges into a node compete under its learned threshold."""

    strength: float
    """Lambda."""
    norm: Norm = field(default_factory=L1)
    """The penalty's norm."""
    rgf: float | None = None
    """Rectified gradient flow, with which edges come back."""

    # edges start at random
    options = Gated.options - {"start"}

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        return cls(strength=settings.strength, norm=settings.chosen_norm(), rgf=settings.rgf)

    def rule(self) -> EdgeRule:
        return Differentiable(rgf=self.rgf)

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        return Penalty(model, self.norm, self.strength)


@dataclass(frozen=True, kw_only=True)
class WiredProximal(Wired):
    """After each step of the optimiser, the operator of a norm shrinks the edges into each node."""

    strength: float
    """Lambda of the operator; it acts times the learning rate."""
    norm: Norm = field(default_factory=L1)
    """`L1()` or `ExclusiveL12()`."""
    target: float | None = None
    """Share of zero edges at which shrinking ends and zeros stay."""

    options = Proximal.options

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        return cls(strength=settings.strength, norm=named_norm(settings), target=settings.target)

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        weights = [weight for stage in wired_stages(model) for weight in stage.edges.weights()]
        return ProximalStep(optimizer, weights, self.norm, self.strength, self.target)


@dataclass(frozen=True, kw_only=True)
class WiredCount(Wired):
    """Every stage has the same share of its usable edges, throughout."""

    target: float
    """Share of edges that are zero."""

    options = frozenset({"target"})

    def __post_init__(self) -> None:
        require_number("target", self.target, low=0, high=1)

    @classmethod
    def check(cls, settings: Sparsifying) -> None:
        super().check(settings)
        if settings.target is None:
            raise SparsityError(f"{settings.method} needs a target, the share of edges that are zero")

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        assert settings.target is not None
        return cls(target=settings.target)


@dataclass(frozen=True, kw_only=True)
class WiredLargest(WiredCount):
    """Discovering Neural Wirings: in each pass the largest edges of a stage are there, so many that `target` are not.

    Every stage keeps the same share of its usable edges, and exactly so many throughout.
    """

    update: bool = True
    """Whether the gradient also flows to the edges that are not there."""

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        assert settings.target is not None
        return cls(target=settings.target, update=settings.method == "dnw")

    def rule(self) -> EdgeRule:
        return TopK(zeros=self.target, update=self.update)


@dataclass(frozen=True, kw_only=True)
class WiredRandom(WiredCount):
    """A random graph that stays: every stage draws as many edges as `WiredLargest` would keep, and trains these."""

    def rule(self) -> EdgeRule:
        return FixedRandom(zeros=self.target)


WIRED = NetworkKind("wired", lambda model: bool(wired_stages(model)))

register_method("plain", Wired, WIRED)
register_method("ds", WiredGates, WIRED)
for _name in ("proximal-l1", "proximal-l12"):
    register_method(_name, WiredProximal, WIRED)
for _name in ("dnw", "dnw-no-update"):
    register_method(_name, WiredLargest, WIRED)
register_method("random", WiredRandom, WIRED)
