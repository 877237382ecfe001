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


@torch.no_grad()
def largest_difference(
    original: nn.Module,
    compacted: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    any_size: bool = True,
    draws: int = 2,
) -> float:
    """Largest relative difference of the outputs: on the example, on random inputs like it, and on larger ones.

    Larger ones, with one more pixel each way, count only if the original takes them and `any_size` is asked for.
    """
    generator = torch.Generator().manual_seed(0)
    both = (args, kwargs)
    trials = [both] + [random_like(both, generator) for _ in range(draws)]
    worst = max(difference(_run(original, trial), _run(compacted, trial)) for trial in trials)
    larger = _grown(both) if any_size else both
    try:
        expected = _run(original, larger)
    except Exception:
        # whatever the user's model raises, it does not take this size
        return worst
    return max(worst, difference(expected, _run(compacted, larger)))


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
