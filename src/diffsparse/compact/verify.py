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
        worst = max(worst, _apart(a.double(), b.double()))
    return worst


def _apart(a: Tensor, b: Tensor) -> float:
    """Largest relative difference; infinities and NaN must stand in the same places."""
    odd = ~torch.isfinite(a)
    if not torch.equal(odd, ~torch.isfinite(b)) or not torch.equal(a[odd].nan_to_num(), b[odd].nan_to_num()):
        return float("inf")
    if bool(odd.all()):
        return 0.0
    apart, scale = (a - b)[~odd].abs().max().item(), a[~odd].abs().max().item()
    return apart / scale if scale > 0 else apart


class Trials:
    """Inputs and what the original gives for them.

    They are the example, a random one like it, one with one more sample, and one with one more pixel each way. An input
    that the original refuses does not count. Random numbers that the model itself draws are the same each time.
    """

    def __init__(
        self, original: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], tolerance: float | None = None
    ) -> None:
        self.tolerance = default_tolerance(original) if tolerance is None else tolerance
        both = (args, kwargs)
        trials = [both, random_like(both, torch.Generator().manual_seed(0)), _one_more(both)]
        self.trials = [(trial, _answer(original, trial)) for trial in trials]
        self.larger = (_grown(both), _answer(original, _grown(both)))

    def check(self, compacted: nn.Module, *, any_size: bool = True) -> float:
        """The largest difference; raise if it is more than the tolerance."""
        difference = self.largest_difference(compacted, any_size=any_size)
        if not difference <= self.tolerance:
            raise SparsityError(
                f"outputs differ by {difference:.3g} relative, more than the tolerance of {self.tolerance:g}"
            )
        return difference

    def largest_difference(self, compacted: nn.Module, *, any_size: bool = True) -> float:
        """Largest relative difference of the outputs; the larger input is left out unless `any_size`."""
        trials = [*self.trials, *([self.larger] if any_size else [])]
        return max(difference(answer, _run(compacted, trial)) for trial, answer in trials if answer is not None)


def _answer(model: nn.Module, trial: Any) -> Any:
    try:
        return _run(model, trial)
    except Exception:
        # whatever the user's model raises, it does not take this input
        return None


@torch.no_grad()
def _run(model: nn.Module, trial: Any) -> Any:
    args, kwargs = _each_tensor(torch.clone, trial)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model(*args, **kwargs)


def _one_more(thing: Any) -> Any:
    """The first sample once more behind the others."""
    return _each_tensor(lambda tensor: torch.cat([tensor, tensor[:1]]) if tensor.dim() > 0 else tensor, thing)


def _grown(thing: Any) -> Any:
    """Images with one more pixel each way: every dimension behind the second."""

    def grow(tensor: Tensor) -> Tensor:
        if tensor.dim() < 3 or not tensor.is_floating_point():
            return tensor
        return F.pad(tensor, [0, 1] * (tensor.dim() - 2), value=0.5)

    return _each_tensor(grow, thing)
