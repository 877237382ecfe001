"""From the options of a run to the object that does it."""

from diffsparse.errors import SparsityError
from diffsparse.methods import (
    Gated,
    Method,
    Proximal,
    Scratch,
    Slimming,
    TorchPruning,
)
from diffsparse.penalties import L1, ExclusiveL12, GroupL21, Lp
from diffsparse.penalties.norms import Norm
from diffsparse.training.config import Sparsifying
from diffsparse.wiring.methods import Wired, WiredGates, WiredLargest, WiredProximal, WiredRandom

NO_STRENGTH = ("plain", "given-map", "torch-pruning", "scratch", "dnw", "dnw-no-update", "random")
"""Methods without a lambda."""
WIRED = ("ds", "dnw", "dnw-no-update", "random", "proximal-l1", "proximal-l12", "plain")
"""Methods for wired networks."""


def choose_method(settings: Sparsifying, *, wired: bool = False) -> Method:
    """The method that `settings` describe, for an ordinary network or for the edges of a wired one.

    Raises:
        SparsityError: an option was given that means nothing to the method.

    Example:
        >>> choose_method(Sparsifying(method="proximal-l21", strength=0.1, group_size=4))
        Proximal(strength=0.1, norm=GroupL21(size=4), target=None)
    """
    settings.check()
    _check_options(settings)
    if wired:
        return _wired_method(settings)
    method, strength = settings.method, settings.strength
    targets = {"target": settings.target, "target_macs": settings.target_macs}
    if method == "ds":
        return Gated(strength=strength, norm=_norm(settings.norm, settings), start=settings.start, rgf=settings.rgf)
    if method == "slimming":
        return Slimming(strength=strength, start=settings.start, **targets)
    if method == "torch-pruning":
        return TorchPruning(**targets)
    if method.startswith("proximal-"):
        return Proximal(
            strength=strength, norm=_norm(method.removeprefix("proximal-"), settings), target=settings.target
        )
    if method == "scratch":
        assert settings.like is not None
        return Scratch(like=settings.like)
    if method in ("plain", "given-map"):
        return Method()
    if method in WIRED:
        raise SparsityError(f"method {method} chooses edges of a wired network, and this network has none")
    raise SparsityError(f"method must be one of those that Sparsifying lists, got {method!r}")


def _wired_method(settings: Sparsifying) -> Method:
    method, strength, target = settings.method, settings.strength, settings.target
    if method not in WIRED:
        raise SparsityError(f"method {method} is not for wired networks; theirs are {', '.join(WIRED)}")
    if settings.start != Sparsifying.start:
        raise SparsityError(f"start={settings.start:g} is for gates on channels; edges start at random")
    if method == "ds":
        return WiredGates(strength=strength, norm=_norm(settings.norm, settings), rgf=settings.rgf)
    if method.startswith("proximal-"):
        return WiredProximal(strength=strength, norm=_norm(method.removeprefix("proximal-"), settings), target=target)
    if method == "plain":
        return Wired()
    assert target is not None
    return WiredRandom(target=target) if method == "random" else WiredLargest(target=target, update=method == "dnw")


def _norm(name: str, settings: Sparsifying) -> Norm:
    return {"l1": L1(), "l21": GroupL21(size=settings.group_size), "l12": ExclusiveL12(), "lp": Lp(0.5)}[name]


def _check_options(settings: Sparsifying) -> None:
    method, norm = settings.method, settings.norm
    if method != "ds" and norm != "l1" and method != f"proximal-{norm}":
        own = "has its norm in its name" if method.startswith("proximal-") else "has no such choice"
        raise SparsityError(f"norm {norm} is a penalty on gates, method ds; {method} {own}")
    if method != "ds" and settings.rgf is not None:
        raise SparsityError(f"rgf={settings.rgf:g} is about gates, method ds; {method} has none")
    if method in NO_STRENGTH and settings.strength not in (0, Sparsifying.strength):
        raise SparsityError(f"strength={settings.strength:g} is lambda, of which {method} has none")
    if method in NO_STRENGTH and settings.ramp_epochs:
        raise SparsityError(f"ramp_epochs={settings.ramp_epochs:g} raises lambda, of which {method} has none")
