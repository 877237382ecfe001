"""For tests of models and of rules: zero some channels, and check that a rule for an operator holds."""

import copy
import random
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn

from diffsparse.compaction import Compacted, compact
from diffsparse.compaction.actions import Slice
from diffsparse.compaction.verify import TOLERANCE, difference
from diffsparse.errors import SparsityError, SparsityWarning, require_whole


@torch.no_grad()
def zero_channels(layer: nn.Module, channels: Sequence[int] | slice | Tensor = slice(None)) -> None:
    """Zero the weight and the bias of these channels of a batch norm, or of these outputs of another layer.

    Example:
        >>> norm = nn.BatchNorm2d(3)
        >>> zero_channels(norm, [0, 2])
        >>> norm.weight.tolist()
        [0.0, 1.0, 0.0]
    """
    for tensor in (layer.weight, layer.bias):
        if isinstance(tensor, Tensor):
            tensor[channels] = 0


def zero_random_channels(norm: nn.Module, rate: float, generator: torch.Generator) -> None:
    """Zero a share of the channels of a batch norm, chosen at random."""
    width = len(norm.weight)  # type: ignore[arg-type]
    zero_channels(norm, torch.randperm(width, generator=generator)[: round(rate * width)])


def check_rule(
    operator: Callable[..., Tensor],
    *,
    inputs: int = 1,
    spatial: int = 2,
    widths: Sequence[int] = (4, 6, 8, 12),
    trials: int = 20,
    seed: int = 0,
    must_remove: bool = True,
) -> None:
    """Compact random networks around an operator, and compare them with the originals.

    Each network, in float64, is a convolution (or linear layer) and a batch norm per input, the operator, and a last
    layer. Some channels of the batch norms are zero and some are constant.

    Args:
        operator: a function or module that takes `inputs` tensors of one shape and returns (N, C) or (N, C, ...).
        inputs: how many tensors it takes.
        spatial: dimensions behind the channels, from 0 to 3.
        widths: numbers of channels to choose from.
        trials: how many networks.
        seed: of the first network.
        must_remove: whether dead channels must leave the last layer in at least one of the networks.

    Raises:
        AssertionError: the rule does not hold; the message has the seed of the network and what differed.

    Example:
        >>> check_rule(torch.maximum, inputs=2, trials=5)
    """
    require_whole("spatial", spatial, low=0, high=3)
    removed, reasons = False, set()
    for number in range(seed, seed + trials):
        with torch.random.fork_rng():
            torch.manual_seed(number)
            model = _network(copy.deepcopy(operator), inputs, spatial, random.Random(number).choice(widths))
            try:
                small = _compacted(model, spatial)
            except Exception as error:
                message = f"{error}\ncheck_rule with seed={number}, trials=1 shows this again, on {model}"
                raise AssertionError(message) from error
        last = small.plan.layers.get("last")
        now = last.inputs if isinstance(last, Slice) else None
        removed |= now is not None and now[1] < now[0]
        reasons |= {entry.reason for entry in small.kept}
    if must_remove and not removed:
        why = "; ".join(sorted(reasons)) or "the rule reads or keeps every channel"
        raise AssertionError(f"no dead channel was removed behind the operator in {trials} networks: {why}")


class _Around(nn.Module):
    def __init__(self, fronts: list[nn.Module], operator: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fronts, self.operator = nn.ModuleList(fronts), operator
        self.last: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.operator(*(front(x) for front in self.fronts)))  # type: ignore[no-any-return]


@torch.no_grad()
def _network(operator: Callable[..., Tensor], inputs: int, spatial: int, width: int) -> nn.Module:
    dead = torch.rand(width) < 0.5
    dead[torch.randperm(width)[:2]] = torch.tensor([True, False])
    fronts: list[nn.Module] = []
    for _ in range(inputs):
        norm = getattr(nn, f"BatchNorm{spatial or 1}d")(width)
        for tensor, offset in ((norm.weight, 0), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 2)):
            tensor.copy_(torch.randn(width).clamp(-1.5) + offset)
        zero_channels(norm, dead)
        norm.weight[torch.rand(width) < 0.2] = 0  # constant at its shift
        fronts.append(nn.Sequential(_layer(3, width, spatial, kernel=1), norm))
    model = _Around(fronts, operator).double().eval()
    out = model(_images(spatial))
    if out.dim() not in {2, spatial + 2}:
        raise SparsityError(f"the operator must return (N, C) or (N, C, ...) as it was given, got {tuple(out.shape)}")
    model.last = _layer(out.shape[1], 3, out.dim() - 2, kernel=int(torch.randint(1, 4, ()))).double().eval()
    return model


def _layer(inputs: int, outputs: int, spatial: int, kernel: int) -> nn.Module:
    kind: Any = [nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d][spatial]
    return cast(nn.Module, kind(inputs, outputs, *([kernel, 1, kernel // 3] if spatial else [])))


def _images(spatial: int, batch: int = 2, size: int = 9) -> Tensor:
    return torch.randn(batch, 3, *(size + i for i in range(spatial)), dtype=torch.float64)


@torch.no_grad()
def _compacted(model: nn.Module, spatial: int) -> Compacted[Any]:
    """The compact model, if it is the same at other batch and image sizes that the operator takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsityWarning)
        small = compact(model, _images(spatial))
    if small.fallbacks:
        raise AssertionError(f"the rule does not hold, and compact fell back to a safer plan: {small.fallbacks[0]}")
    for batch, size in product((1, 2, 3), (9, 12, 14)):
        x = _images(spatial, batch, size)
        try:
            expected = model(x)
        except Exception:
            # whatever the operator raises, it does not take this size
            continue
        apart = difference(expected, small.model(x))
        if not apart <= TOLERANCE[torch.float64]:
            raise AssertionError(f"for input {tuple(x.shape)} the compact model differs by {apart:.3g} relative")
    return small
