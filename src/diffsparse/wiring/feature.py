"""What learned wirings add to the rest of the package (network, methods, report); an entry point names this module."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError, require_number
from diffsparse.gating import Count
from diffsparse.methods import Method, NetworkKind, Sparsifying, register_method
from diffsparse.methods.gated import Gated
from diffsparse.methods.method import COSTS, Sample
from diffsparse.methods.proximal import Proximal
from diffsparse.models.factory import MULTIPLIER, Family, register_family, width_multiplier
from diffsparse.penalties import ProximalStep, Regulariser
from diffsparse.plot.picture import save_formats
from diffsparse.training.report import RunReport, cost_cells, register_report
from diffsparse.wiring.graph import CHAIN, learned_wiring, wiring_cost, wiring_figures
from diffsparse.wiring.mobilenet import WiredMobileNet
from diffsparse.wiring.picture import wiring_figure
from diffsparse.wiring.rules import Differentiable, EdgeRule, FixedRandom, Plain, TopK
from diffsparse.wiring.stage import wired_stages


class Wired(Method):
    """Every edge exists throughout training; subclasses choose another rule. Edges of a fresh network are redrawn."""

    def rule(self) -> EdgeRule:
        """The rule that chooses the edges of every stage."""
        return Plain()

    def prepare(self, model: nn.Module, sample: Sample | None = None) -> nn.Module:
        stages = wired_stages(model)
        if not stages:
            raise SparsityError(f"{type(self).__name__} is about edges, and {type(model).__name__} has no WiredStage")
        for stage in stages:
            stage.edges = self.rule().edges(stage.shape).to(next(stage.parameters()).device)
        return model

    @torch.no_grad()
    def zeros(self, model: nn.Module) -> Count:
        """Usable edges that are zero."""
        matrices = [matrix for stage in wired_stages(model) for matrix in stage.edges()]
        return Count(zero=sum(int((m == 0).sum()) for m in matrices), total=sum(m.numel() for m in matrices))

    def figures(self, model: nn.Module) -> dict[str, Any]:
        zeros = self.zeros(model)
        return {"edges": zeros.total - zeros.zero}

    def live_macs(self, model: nn.Module, example: Tensor) -> int | None:
        """MACs of the live graph, or of the compact network if the stages are not a chain."""
        graph = learned_wiring(model)
        if graph is None:
            return super().live_macs(model, example)
        return wiring_cost(graph, example.shape[-1], recursive=True).mult_adds


@dataclass(frozen=True, kw_only=True)
class WiredGates(Wired, Gated):
    """Differentiable sparsification: edges into a node compete under its learned threshold."""

    # edges start at random, and their number does not change the cost of the dense layers that hold them
    options = Gated.options - COSTS - {"start", "due"}

    def rule(self) -> EdgeRule:
        return Differentiable(rgf=self.rgf)


@dataclass(frozen=True, kw_only=True)
class WiredProximal(Wired, Proximal):
    """After each step of the optimiser, the operator of `L1()` or `ExclusiveL12()` shrinks the edges into each node."""

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        weights = [weight for stage in wired_stages(model) for weight in stage.edges.weights()]
        return ProximalStep(optimizer, weights, self.norm, self.strength, self.target)


@dataclass(frozen=True, kw_only=True)
class WiredCount(Wired):
    """The number of edges stays the same throughout training.

    Either every stage has the same share `target` of edges that are zero, or each has as many edges as MobileNetV1 of
    width `density`.
    """

    target: float | None = None
    density: float | None = None

    options = frozenset({"target", "density"})

    def __post_init__(self) -> None:
        if self.target is not None:
            require_number("target", self.target, low=0, high=1)

    @classmethod
    def check(cls, settings: Sparsifying) -> None:
        super().check(settings)
        if (settings.target is None) == (settings.density is None):
            needs = f"{settings.method} needs a target, the share of edges that are zero, or a density"
            raise SparsityError(needs if settings.target is None else f"{needs}; give one of them")


@dataclass(frozen=True, kw_only=True)
class WiredLargest(WiredCount):
    """Discovering Neural Wirings: each pass uses the largest edges of a stage, the others are unused."""

    update: bool = True
    """Whether unused edges get a gradient too."""

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        return cls(target=settings.target, density=settings.density, update=settings.method == "dnw")

    def rule(self) -> EdgeRule:
        return TopK(zeros=self.target, density=self.density, update=self.update)


@dataclass(frozen=True, kw_only=True)
class WiredRandom(WiredCount):
    """A random graph that stays: every stage draws as many edges as `WiredLargest` would keep, and trains these."""

    def rule(self) -> EdgeRule:
        return FixedRandom(zeros=self.target, density=self.density)


class WiringReport(RunReport):
    """Edges and costs of the live graph, and its picture.

    The compact form of a wired network holds its edges in dense layers, where most entries may be zero; so the live
    graph is what counts.
    """

    caption = "wired networks: Mult-Adds and parameters of the live graph, in brackets of the complete one"

    def figures(self, model: nn.Module, data: DataSet, say: Callable[[str], None]) -> dict[str, Any] | None:
        graph = learned_wiring(model)
        if graph is None and wired_stages(model):
            say(f"MACs and parameters are those of dense layers: to count the graph, a wired network needs {CHAIN}")
        return None if graph is None else wiring_figures(graph, size=data.input_shape[-1])

    def write(self, model: nn.Module, data: DataSet, folder: Path, say: Callable[[str], None]) -> None:
        """Write the picture `wiring` as SVG and PNG; tell the user if matplotlib is missing."""
        graph = learned_wiring(model)
        assert graph is not None
        try:
            save_formats(wiring_figure(graph), folder, "wiring")
        except SparsityError as error:
            say(f"no picture of the wiring: {error}")

    def costs(self, result: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        return {
            name: {"macs": cost["mult_adds"], "params": cost["params"] + cost["batch_norm_params"]}
            for name, cost in (("plain", result["wiring"]["complete"]), ("compact", result["wiring"]["recursive"]))
        }

    def columns(self, result: Mapping[str, Any], cells: dict[str, str]) -> dict[str, str]:
        costs = self.costs(result)
        return cells | {"zeros": f"{cells['zeros']} of edges"} | cost_cells(costs["compact"], costs["plain"])


def _wired(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    kind, width = match["kind"], width_multiplier(match, 32)
    return WiredMobileNet(
        num_classes, in_channels=in_channels, width=width, imagenet=kind == "imagenet", small=kind == "small"
    )


register_family(
    Family(
        grammar="wired-mobilenet[-<multiplier>][-imagenet|-small]",
        pattern=rf"wired-mobilenet{MULTIPLIER}(?:-(?P<kind>imagenet|small))?",
        build=_wired,
        examples=("wired-mobilenet", "wired-mobilenet-0.25", "wired-mobilenet-0.25-small"),
    )
)
register_report("wiring", WiringReport())

WIRED = NetworkKind("wired", lambda model: bool(wired_stages(model)))

register_method("plain", Wired, WIRED)
register_method("ds", WiredGates, WIRED)
for _name in ("proximal-l1", "proximal-l12"):
    register_method(_name, WiredProximal, WIRED)
for _name in ("dnw", "dnw-no-update"):
    register_method(_name, WiredLargest, WIRED)
register_method("random", WiredRandom, WIRED)
