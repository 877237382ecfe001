"""The scales of ordinary batch norms, on which several methods act."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityError, require_number


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All ordinary batch norms that have scales, in the order of the model."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in norms if isinstance(norm.weight, nn.Parameter)]


def batch_norm_scales(model: nn.Module) -> list[nn.Parameter]:
    """The scales of all ordinary batch norms, in the order of the model."""
    return [norm.weight for norm in batch_norms(model)]


def channels(model: nn.Module) -> int:
    """Channels of all ordinary batch norms together."""
    return sum(scale.numel() for scale in batch_norm_scales(model))


def require_scales(method: str, model: nn.Module) -> list[nn.Parameter]:
    """The scales of all batch norms; raises, naming the method, if there are none."""
    scales = batch_norm_scales(model)
    if not scales:
        raise SparsityError(f"{method} acts on scales of batch norms, and {type(model).__name__} has none")
    return scales


def check_targets(method: str, target: float | None, target_macs: float | None) -> None:
    """Raise, naming the method, unless exactly one of the two shares is given and makes sense."""
    if (target is None) == (target_macs is None):
        raise SparsityError(
            f"{method} needs either a target or target_macs, to know how much to remove; "
            f"got target={target}, target_macs={target_macs}"
        )
    for name, share in (("target", target), ("target_macs", target_macs)):
        if share is not None:
            require_number(name, share, above=0, high=1)
