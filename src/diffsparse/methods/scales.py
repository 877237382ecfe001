"""The scales of batch norms, which several methods act on."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityError


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All ordinary batch norms that have scales, in the order of the model."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in norms if isinstance(norm.weight, nn.Parameter)]


def channels(model: nn.Module) -> int:
    """Channels of all ordinary batch norms together."""
    return sum(norm.weight.numel() for norm in batch_norms(model))


def require_scales(method: str, model: nn.Module) -> list[nn.Parameter]:
    """The scales of all ordinary batch norms; raises, naming the method, if there are none."""
    scales = [norm.weight for norm in batch_norms(model)]
    if not scales:
        raise SparsityError(f"{method} acts on scales of batch norms, and {type(model).__name__} has none")
    return scales
