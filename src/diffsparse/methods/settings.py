"""The options of a run that say how the network is made smaller."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from diffsparse.budget.budget import DUE
from diffsparse.budget.limits import METRICS
from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.penalties import NORMS, Norm


@dataclass(frozen=True, kw_only=True)
class Sparsifying:
    """How the network is made smaller. Each method reads some of these options and refuses the others."""

    method: str = "ds"
    """ds (gates), plain, slimming, proximal-l1, -l21, -l12, torch-pruning, scratch; dnw, random for wired networks."""
    macs: float | None = None
    """MACs of one input in the end, as a share of the whole network's (up to 1) or a number; 0.5 if nothing is said."""
    params: float | None = None
    """The same for parameters. If several are given, all hold."""
    bytes: float | None = None
    """The same for bytes of parameters and buffers."""
    latency: float | None = None
    """The same for the time of one input on this machine, as a share of the whole network's; for ds."""
    due: float = DUE
    """For ds: the share of all steps after which that cost is reached; the rest trains the small network."""
    strength: float | Literal["auto"] | None = None
    """Lambda of the paper's penalty or the proximal step, in the place of a cost; auto computes it from the run."""
    norm: str = "l1"
    """Penalty on gates: l1 (channels), l21 (groups), l12 (exclusive), lp (learned graphs), or one you registered."""
    group_size: int = 12
    """Channels per group, for l21."""
    settle_epochs: float = 0.0
    """Epochs at the end without lambda: what is left recovers from its pull. Zeros of proximal steps stay zeros."""
    delay_epochs: float = 0.0
    """Lambda is zero for these epochs, in which weights learn what matters."""
    ramp_epochs: float = 0.0
    """Lambda then rises from zero along the paper's cubic ramp over these epochs; 0 fixes it."""
    start: float | None = None
    """Value at which gates (and the scales of slimming) start; by default 1 with a budget, else the paper's 0.5."""
    rgf: float | None = None
    """Rectified gradient flow: slope of dropped gates in the backward pass; 0.1 in the paper's wiring experiments."""
    target: float | None = None
    """Share of zero channels or edges, in the place of a cost; methods that cut reach it, others steer lambda to it."""
    density: float | None = None
    """For dnw, dnw-no-update and random, in the place of a target: keep as many edges as MobileNetV1 of this width."""
    retrain_epochs: int | None = None
    """Epochs after slimming and torch-pruning have cut; by default --epochs again, so that they train twice as long."""
    like: Path | None = None
    """For scratch: the compact file whose small architecture is trained from a fresh start."""

    def check(self) -> None:
        """Raise if a value makes no sense, whatever the method."""
        for name in METRICS:
            if (cost := getattr(self, name)) is not None:
                _check_cost(name, cost)
        require_number("due", self.due, above=0, high=1)
        if isinstance(self.strength, str) and self.strength != "auto":
            raise SparsityError(f"strength must be a number or auto, got {self.strength!r}")
        require_number("strength", self.number, low=0)
        require_whole("group_size", self.group_size, low=1)
        for name in ("delay_epochs", "settle_epochs", "ramp_epochs"):
            require_number(name, getattr(self, name), low=0)
        if self.start is not None:
            require_number("start", self.start)
        if self.target is not None:
            require_number("target", self.target, above=0, high=1)
        if self.density is not None:
            require_number("density", self.density, above=0, high=1)
        if self.rgf is not None:
            require_number("rgf", self.rgf, above=0)
        if self.retrain_epochs is not None:
            require_whole("retrain_epochs", self.retrain_epochs, low=0)
        NORMS.find(self.norm)

    def given(self) -> dict[str, object]:
        """Options that differ from their defaults, without the method."""
        changed = {option.name: getattr(self, option.name) for option in fields(self) if option.name != "method"}
        return {name: value for name, value in changed.items() if value != getattr(Sparsifying, name)}

    @property
    def number(self) -> float:
        """Lambda; 0 if there is none, or none yet."""
        return 0.0 if self.strength is None or isinstance(self.strength, str) else self.strength

    def chosen_norm(self) -> Norm:
        """The norm of the penalty on gates."""
        return NORMS.find(self.norm).from_options(self.group_size)


def epochs_after_cut(epochs: int, given: int | None) -> int:
    """How long a network trains after it was cut: as long as before it, unless `retrain_epochs` was given."""
    return epochs if given is None else given


def _check_cost(name: str, cost: float) -> None:
    require_number(name, cost, above=0)
    if name == "latency" and cost > 1:
        raise SparsityError(f"latency must be a share of the whole network's, above 0 and up to 1, got {cost:g}")
    if cost > 1 and cost != round(cost):
        raise SparsityError(f"{name} must be a share of the whole network, up to 1, or a whole number, got {cost:g}")
