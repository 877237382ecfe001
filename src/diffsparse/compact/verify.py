"""The last word: run both models and compare."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.compact.capture import tensors_in
from diffsparse.errors import SparsityError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def default_tolerance(model: nn.Module) -> float:
    """What float rounding may change, relative to the largest output, for the dtype of the model."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max((TOLERANCE.get(dtype, 1e-4) for dtype in dtypes), default=1e-4)


def random_like(thing: Any, generator: torch.Generator) -> Any:
    """Random numbers in place of floating-point tensors; everything else as it is."""

    def draw(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        return noise.to(device=tensor.device, dtype=tensor.dtype)

    return _each_tensor(draw, thing)


def _each_tensor(change: Callable[[Tensor], Tensor], thing: Any) -> Any:
    """`thing` with each tensor in nested tuples, lists and dictionaries changed."""
    if isinstance(thing, Tensor):
        return change(thing)
    if isinstance(thing, tuple):
        return tuple(_each_tensor(change, item) for item in thing)
    if isinstance(thing, list):
        return [_each_tensor(change, item) for item in thing]
    if isinstance(thing, dict):
        return {key: _each_tensor(change, item) for key, item in thing.items()}
    return thing


def difference(expected: Any, got: Any) -> float:
    """Largest difference between two outputs, relative to the largest entry of the expected one."""
    first, second = list(tensors_in(expected)), list(tensors_in(got))
    if len(first) != len(second):
        raise SparsityError(f"the compact model returns {len(second)} tensors, the original {len(first)}")
    worst = 0.0
    for a, b in zip(first, second, strict=True):
        if a.shape != b.shape:
            raise SparsityError(f"the compact model returns shape {tuple(b.shape)}, the original {tuple(a.shape)}")
        if a.numel() == 0:
            continue
        if not a.is_floating_point():
            worst = max(worst, float(not torch.equal(a, b)))
            continue
        apart = (a.double() - b.double()).abs().max().item()
        scale = a.double().abs().max().item()
        worst = max(worst, apart / scale if scale > 0 else apart)
        if apart != apart:
            return float("inf")
    return worst


class Trials:
    """Inputs and what the original gives for them: the example, a random one like it, and a larger one.

    The larger one, with one more pixel each way, counts only if the original takes it.
    """

    def __init__(self, original: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        both = (args, kwargs)
        self.inputs = [both, random_like(both, torch.Generator().manual_seed(0))]
        self.expected = [_run(original, trial) for trial in self.inputs]
        self.larger = _grown(both)
        try:
            self.larger_expected = _run(original, self.larger)
        except Exception:
            # whatever the user's model raises, it does not take this size
            self.larger_expected = None

    def largest_difference(self, compacted: nn.Module, *, any_size: bool = True) -> float:
        """Largest relative difference of the outputs; the larger input is left out unless `any_size`."""
        worst = max(difference(e, _run(compacted, i)) for e, i in zip(self.expected, self.inputs, strict=True))
        if self.larger_expected is None or not any_size:
            return worst
        return max(worst, difference(self.larger_expected, _run(compacted, self.larger)))


@torch.no_grad()
def _run(model: nn.Module, trial: Any) -> Any:
    args, kwargs = _each_tensor(torch.clone, trial)
    return model(*args, **kwargs)


def _grown(thing: Any) -> Any:
    """Images with one more pixel each way: every dimension behind the second."""

    def grow(tensor: Tensor) -> Tensor:
        if tensor.dim() < 3 or not tensor.is_floating_point():
            return tensor
        return F.pad(tensor, [0, 1] * (tensor.dim() - 2), value=0.5)

    return _each_tensor(grow, thing)
