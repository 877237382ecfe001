"""The last word: run both models and compare."""

from typing import Any

import torch
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
    if isinstance(thing, Tensor):
        if not thing.is_floating_point():
            return thing
        noise = torch.randn(thing.shape, generator=generator, dtype=torch.float32)
        return noise.to(device=thing.device, dtype=thing.dtype)
    if isinstance(thing, tuple):
        return tuple(random_like(item, generator) for item in thing)
    if isinstance(thing, list):
        return [random_like(item, generator) for item in thing]
    if isinstance(thing, dict):
        return {key: random_like(item, generator) for key, item in thing.items()}
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
    original: nn.Module, compacted: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], draws: int = 2
) -> float:
    """Largest relative difference of the outputs, on the example and on random inputs like it."""
    generator = torch.Generator().manual_seed(0)
    trials = [(args, kwargs)] + [(random_like(args, generator), random_like(kwargs, generator)) for _ in range(draws)]
    return max(difference(original(*a, **k), compacted(*a, **k)) for a, k in trials)
