"""What every way of making a network smaller has in common."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from diffsparse.compaction import Compacted, compact
from diffsparse.errors import SparsityError, require_number
from diffsparse.gates import named_gates
from diffsparse.gating import sparsity
from diffsparse.gating.zeros import Count
from diffsparse.nn import SparseBatchNorm


class Regulariser(Protocol):
    """What pushes towards sparsity during training."""

    strength: float
    """Lambda, which the training loop sets."""

    def __call__(self) -> Tensor | None:
        """The term to add to the loss; None if it acts elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A network that was cut, to go on training with."""

    model: nn.Module
    """The smaller network."""
    compacted: Compacted[nn.Module] | None
    """How it follows from the whole one, for saving; its model is `model`. None if another library cut."""
    removed: Count
    """Batch-norm channels that went, of all before the cut."""


class Method:
    """Plain training, and the base of all others: each overrides what it does differently."""

    cuts = False
    """Whether the network is trained, cut and trained again."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model to train, made from a fresh one."""
        return model

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser | None:
        """What acts on `model` during training, None if nothing does; a network that was cut trains without."""
        return None

    def zeros(self, model: nn.Module) -> Count:
        """Channels that batch norms or gates have set to zero."""
        if any(True for _ in named_gates(model)):
            return sparsity(model).channels
        scales = batch_norm_scales(model)
        return Count(zero=sum(int((s == 0).sum()) for s in scales), total=channels(model))

    def compacted(self, model: nn.Module, fresh: nn.Module, example: Tensor) -> Compacted[nn.Module]:
        """For methods that do not cut: the compact form of the trained `model`, which came from `fresh`."""
        return compact(model, example)

    def cut(self, model: nn.Module, example: Tensor) -> Cut:
        """For methods that cut: the smaller model to go on with. `model` is left as it is."""
        raise NotImplementedError


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All ordinary batch norms that have scales, in the order of the model."""
    norms = (m for m in model.modules() if isinstance(m, _BatchNorm) and not isinstance(m, SparseBatchNorm))
    return [norm for norm in norms if isinstance(norm.weight, nn.Parameter)]


def batch_norm_scales(model: nn.Module) -> list[nn.Parameter]:
    """The scales of all ordinary batch norms, in the order of the model."""
    return [norm.weight for norm in batch_norms(model)]


def channels(model: nn.Module) -> int:
    """Channels of all ordinary batch norms together."""
    return sum(scale.numel() for scale in batch_norm_scales(model))


def require_scales(what: str, model: nn.Module) -> list[nn.Parameter]:
    """The scales of all batch norms; raises, naming the method `what`, if there are none."""
    scales = batch_norm_scales(model)
    if not scales:
        raise SparsityError(f"{what} acts on scales of batch norms, of which {type(model).__name__} has none")
    return scales


def check_targets(what: str, target: float | None, target_macs: float | None) -> None:
    """Raise, naming the method `what`, unless just one of the two shares is given and makes sense."""
    if (target is None) == (target_macs is None):
        raise SparsityError(
            f"{what} needs either a target or target_macs, to know how much to remove; "
            f"got target={target}, target_macs={target_macs}"
        )
    for name, share in (("target", target), ("target_macs", target_macs)):
        if share is not None:
            require_number(name, share, above=0, high=1)
