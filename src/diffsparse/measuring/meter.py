"""One call that measures a model, or two side by side."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module
from diffsparse.example import Example
from diffsparse.measuring.cost import count
from diffsparse.measuring.latency import Latency, time_interleaved
from diffsparse.measuring.recorder import dense_parts
from diffsparse.measuring.report import Comparison, Measurement
from diffsparse.module_tree import lazy_tensor, uncompiled
from diffsparse.undisturbed import undisturbed

Inputs: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any]


@overload
def measure(
    model: nn.Module,
    example_inputs: Inputs,
    other: None = None,
    *,
    latency: bool = True,
    seconds: float = 1.0,
    warmup: int = 3,
    min_runs: int = 10,
) -> Measurement: ...


@overload
def measure(
    model: nn.Module,
    example_inputs: Inputs,
    other: nn.Module,
    *,
    latency: bool = True,
    seconds: float = 1.0,
    warmup: int = 3,
    min_runs: int = 10,
) -> Comparison: ...


def measure(
    model: nn.Module,
    example_inputs: Inputs,
    other: nn.Module | None = None,
    *,
    latency: bool = True,
    seconds: float = 1.0,
    warmup: int = 3,
    min_runs: int = 10,
) -> Measurement | Comparison:
    """Operations, parameters, memory and time of a model, or of two models compared.

    FLOPs = 2 x MACs of convolutions and linear layers; products between activations (attention) and elementwise
    operations are figures of their own. All figures are for the whole example: with a batch of 8, divide by 8 for
    those of one sample. The model runs in eval mode without gradients and is left as it was, its training flags,
    buffers and the random state included.

    Args:
        model: any model.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments, on the model's device.
        other: a second model; both are then timed in turns on the same example.
        latency: whether to time at all.
        seconds: how much time to spend on timing each model.
        warmup: untimed calls of each model before.
        min_runs: the least number of timed calls of each model.

    Example:
        >>> figures = measure(nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, 32, 32), latency=False)
        >>> figures.macs, figures.flops, figures.params
        (221184, 442368, 224)
        >>> measure(nn.Linear(8, 8), torch.zeros(1, 8), nn.Linear(8, 2), latency=False).ratios["macs"]
        0.25
    """
    _check("model", model)
    if other is not None:
        _check("other", other)
    models = [model] if other is None else [model, other]
    measured = measure_in_turns(
        models, example_inputs, latency=latency, seconds=seconds, warmup=warmup, min_runs=min_runs
    )
    return measured[0] if other is None else Comparison(model=measured[0], other=measured[1])


def measure_in_turns(
    models: Sequence[nn.Module],
    example_inputs: Inputs,
    *,
    latency: bool = True,
    seconds: float = 1.0,
    warmup: int = 3,
    min_runs: int = 10,
) -> list[Measurement]:
    """What `measure` says of each of several models, all timed in turns on the same example."""
    example = Example.of(example_inputs)
    # A compiled model is timed compiled and counted as the module it was made from.
    sources: list[nn.Module] = [uncompiled(each) for each in models]
    costs = [count(each, example) for each in sources]
    latencies: tuple[Latency | None, ...] = (None,) * len(models)
    if latency:
        calls = [partial(example.run, each) for each in models]
        with undisturbed(*models, device=example.device):
            latencies = time_interleaved(
                calls, device=example.device, seconds=seconds, warmup=warmup, min_runs=min_runs
            )
    return [
        Measurement(
            name=type(each).__name__,
            input=str(example),
            params=sum(parameter.numel() for parameter in each.parameters()),
            buffers=sum(buffer.numel() for buffer in each.buffers()),
            bytes=sum(p.nbytes for t in (*each.parameters(), *each.buffers()) for p in dense_parts(t)),
            latency=time,
            device=str(example.device),
            threads=torch.get_num_threads(),
            **vars(cost),
        )
        for each, cost, time in zip(sources, costs, latencies, strict=True)
    ]


def _check(role: str, model: nn.Module) -> None:
    require_module(role, model)
    if lazy := lazy_tensor(model):
        raise SparsityError(f"{lazy} has no shape yet; run {type(model).__name__} once before measuring it")
