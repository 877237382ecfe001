"""The options of a run that say how the network is made smaller."""

from dataclasses import dataclass, fields
from pathlib import Path

from diffsparse.errors import require_number, require_whole
from diffsparse.penalties import NORMS, Norm


@dataclass(frozen=True, kw_only=True)
class Sparsifying:
    """How the network is made smaller. Each method reads some of these options and refuses the others."""

    method: str = "ds"
    """ds (gates, this package), plain (no sparsity), slimming, proximal-l1, proximal-l21, proximal-l12, torch-pruning,
    scratch; for wired networks also dnw, dnw-no-update and random; for traffic networks also given-map."""
    strength: float = 1e-3
    """Lambda of the penalty or of the proximal step; docs/strength.md tells how to choose it."""
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
    start: float = 0.5
    """Value at which gates (and the scales of slimming) start."""
    rgf: float | None = None
    """Rectified gradient flow: slope of dropped gates in the backward pass; 0.1 in the paper's wiring experiments."""
    target: float | None = None
    """Share of zero channels, or edges of a wired network, to aim at. Slimming, torch-pruning, dnw, dnw-no-update and
    random remove exactly that share; the others steer lambda."""
    target_macs: float | None = None
    """For slimming and torch-pruning: the share of MACs to keep, instead of a target."""
    retrain_epochs: int | None = None
    """Epochs after slimming and torch-pruning have cut; by default as many as before."""
    like: Path | None = None
    """For scratch: the compact file whose small architecture is trained from a fresh start."""

    def check(self) -> None:
        """Raise if a value makes no sense, whatever the method."""
        require_number("strength", self.strength, low=0)
        require_whole("group_size", self.group_size, low=1)
        for name in ("delay_epochs", "settle_epochs", "ramp_epochs"):
            require_number(name, getattr(self, name), low=0)
        require_number("start", self.start)
        for name, share in (("target", self.target), ("target_macs", self.target_macs)):
            if share is not None:
                require_number(name, share, above=0, high=1)
        if self.rgf is not None:
            require_number("rgf", self.rgf, above=0)
        if self.retrain_epochs is not None:
            require_whole("retrain_epochs", self.retrain_epochs, low=0)
        NORMS.find(self.norm)

    def given(self) -> dict[str, object]:
        """Options that differ from their defaults, without the method; a strength of 0 asks for nothing."""
        changed = {option.name: getattr(self, option.name) for option in fields(self)}
        changed = {name: value for name, value in changed.items() if value != getattr(Sparsifying, name)}
        return {name: value for name, value in changed.items() if name != "method" and (name, value) != ("strength", 0)}

    def chosen_norm(self) -> Norm:
        """The norm of the penalty on gates."""
        return NORMS.find(self.norm).from_options(self.group_size)
