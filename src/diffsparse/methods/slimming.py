"""Network Slimming: l1 on the scales of batch norms, then a global cut, then training again."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.compaction import Compacted, compact
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.materialise import check_model
from diffsparse.errors import SparsityError, SparsityWarning, require_number
from diffsparse.gating import Count
from diffsparse.measuring import measure
from diffsparse.methods.costs import CostLimits, asked_costs
from diffsparse.methods.method import (
    COSTS,
    STEERING,
    Cut,
    Method,
    Sample,
    check_targets,
    register_method,
)
from diffsparse.methods.scales import batch_norms, channels, require_scales
from diffsparse.penalties import Regulariser

TOLERANCE = 0.005
"""How far below the cost, as a share of it, the search is content."""


@dataclass(frozen=True, kw_only=True)
class Slimming(Method):
    """Scales of batch norms are trained under an l1 penalty; then the smallest of the whole network are cut.

    Scale and shift of a cut channel become zero on a copy, and `compact` removes what is then superfluous, whole layers
    and blocks too. Channels are ranked over all batch norms together; ties keep the order of the model.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> method = Slimming(strength=1e-4, target=0.75)
        >>> net = method.prepare(net)
        >>> method.regulariser(net, torch.optim.SGD(net.parameters(), lr=0.1))().item()
        0.00039999998989515007
        >>> method.cut(net, torch.zeros(1, 3)).model[0]
        Linear(in_features=3, out_features=2, bias=True)
    """

    strength: float
    target: float | None = None
    """Share of all channels to cut."""
    macs: float | None = None
    """Or what the network may cost: the smallest cut within that, to within `TOLERANCE` or one channel; shares of the
    whole network up to 1, numbers above."""
    params: float | None = None
    bytes: float | None = None
    start: float = 0.5

    cuts = True
    options = COSTS | STEERING | {"target", "start", "retrain_epochs"}

    def __post_init__(self) -> None:
        require_number("strength", self.strength, low=0)
        require_number("start", self.start)
        check_targets("slimming", self.target, asked_costs(self))

    def prepare(self, model: nn.Module, sample: Sample | None = None) -> nn.Module:
        for scale in require_scales("slimming", model):
            nn.init.constant_(scale, self.start)
        return model

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        return ScalePenalty(require_scales("slimming", model), self.strength)

    def cut(self, model: nn.Module, example: Tensor) -> Cut:
        """The compact network without the channels of smallest scale; raises if it would ignore its input."""
        model = check_model(model)
        if not all(bool(scale.isfinite().all()) for scale in require_scales("slimming", model)):
            raise SparsityError(f"a batch norm of {type(model).__name__} has a scale that is not finite: it diverged")
        if self.target is None:
            return _cut_to_cost(model, example, asked_costs(self))
        total = channels(model)
        count = round(self.target * total)
        if (small := _compact_without(model, example, count)) is None:
            cut = f"without the {count} of {total} channels that target={self.target:g} removes"
            dead = f"the output of {type(model).__name__} no longer depends on its input"
            raise SparsityError(f"{cut}, {dead}; ask for a smaller target")
        return Cut(model=small.model, compacted=small, removed=Count(zero=count, total=total))


class ScalePenalty(Regulariser):
    r""":math:`\lambda \sum_i |\gamma_i|` over all scales of batch norms, in a few kernels."""

    def __init__(self, scales: Sequence[Tensor], strength: float) -> None:
        self.scales, self.strength = list(scales), strength

    def __call__(self) -> Tensor:
        device = self.scales[0].device
        return self.strength * torch.cat([scale.to(device) for scale in self.scales]).abs().sum()


@torch.no_grad()
def without_smallest(model: nn.Module, count: int) -> nn.Module:
    """A copy of `model` in which the `count` channels of smallest |scale| have neither scale nor shift."""
    masked = duplicate(model)
    norms = batch_norms(masked)
    # one device and dtype for all, or layers could not be compared
    sizes = torch.cat([norm.weight.abs().double().cpu() for norm in norms])
    gone = torch.zeros(len(sizes), dtype=torch.bool)
    gone[sizes.argsort(stable=True)[:count]] = True
    for norm, dead in zip(norms, torch.split_with_sizes(gone, [norm.weight.numel() for norm in norms]), strict=True):
        for parameter in (norm.weight, norm.bias):
            if isinstance(parameter, nn.Parameter):
                parameter[dead.to(parameter.device)] = 0
    return masked


def _compact_without(model: nn.Module, example: Tensor, count: int) -> Compacted[nn.Module] | None:
    """The compact model without its `count` smallest channels; None if nothing reaches its output any more."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no longer depends on its input", SparsityWarning)
        small = compact(without_smallest(model, count), example)
    return None if small.constant_output else small


def _cut_to_cost(model: nn.Module, example: Tensor, asked: dict[str, float]) -> Cut:
    """Bisection over the number of channels: cuts are nested, so that costs fall with it."""
    whole, total = measure(model, example, latency=False), channels(model)
    limits, least, best = CostLimits(asked, whole), whole, None
    # one more than all stands for what cannot be reached
    too_few, enough = -1, total + 1
    while enough - too_few > 1:
        count = (too_few + enough) // 2
        small = _compact_without(model, example, count)
        excess = 0.0 if small is None else limits.excess(small.after)
        if small is not None and excess > 1:
            too_few, least = count, small.after
            continue
        enough = count
        if small is not None:
            best = Cut(model=small.model, compacted=small, removed=Count(zero=count, total=total))
            if 1 - excess <= TOLERANCE:
                break
    if best is None:
        raise SparsityError(
            f"{limits.words()} is out of reach: at {limits.shares(least)} one more channel of "
            f"{type(model).__name__} makes its output independent of its input; ask for more"
        )
    return best


register_method("slimming", Slimming)
