"""One call that measures a model, or two side by side."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, Unpack, overload

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module
from diffsparse.example import Example
from diffsparse.measuring.cost import count, dense_parts
from diffsparse.measuring.latency import Latency, Timing, time_interleaved
from diffsparse.measuring.latency_table import LatencyTable
from diffsparse.measuring.predict import predicted_seconds
from diffsparse.measuring.report import Comparison, Measurement
from diffsparse.module_tree import HoldsModel, held_model, lazy_tensor, uncompiled
from diffsparse.undisturbed import undisturbed

Inputs: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any]
Measurable: TypeAlias = nn.Module | HoldsModel


@overload
def measure(
    model: Measurable,
    example_inputs: Inputs,
    other: None = None,
    *,
    latency: bool = ...,
    predict: bool = ...,
    **timing: Unpack[Timing],
) -> Measurement: ...


@overload
def measure(
    model: Measurable,
    example_inputs: Inputs,
    other: Measurable,
    *,
    latency: bool = ...,
    predict: bool = ...,
    **timing: Unpack[Timing],
) -> Comparison: ...


def measure(
    model: Measurable,
    example_inputs: Inputs,
    other: Measurable | None = None,
    *,
    latency: bool = True,
    predict: bool = False,
    **timing: Unpack[Timing],
) -> Measurement | Comparison:
    """Operations, parameters, memory and time of a model, or of two models compared.

    FLOPs = 2 x MACs of convolutions, linear layers and matrix products. Products between activations, as in attention,
    are also a figure of their own (`product_macs`; `layer_macs` is the rest), and so are elementwise operations. The
    products of attention grow with the square of the length: they are counted for that of the example.

    All figures are for the whole example: with a batch of 8, divide by 8 to get those of one sample. The model runs in
    eval mode without gradients; its training flags, its buffers and the random state are restored.

    Args:
        model: any model, or what `compact` returned.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments, on the model's device.
        other: a second model; both are then timed in turns on the same example.
        latency: whether to measure time at all.
        predict: whether to also say what the table of latencies in your cache predicts; layers that it does not have
            are timed. `diffsparse.measuring.by_layer` shows where the time goes.
        seconds: how much time to spend on timing each model, 1 by default.
        warmup: untimed calls of each model before, 3 by default.
        min_runs: the least number of timed calls of each model, 10 by default.

    Example:
        >>> figures = measure(nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, 32, 32), latency=False)
        >>> figures.macs, figures.flops, figures.params
        (221184, 442368, 224)
        >>> measure(nn.Linear(8, 8), torch.zeros(1, 8), nn.Linear(8, 2), latency=False).ratios["macs"]
        0.25
    """
    own = _checked("model", model)
    if other is None:
        return measure_in_turns([own], example_inputs, latency=latency, predict=predict, **timing)[0]
    both = [own, _checked("other", other)]
    first, second = measure_in_turns(both, example_inputs, latency=latency, predict=predict, **timing)
    return Comparison(model=first, other=second)


def measure_in_turns(
    models: Sequence[nn.Module],
    example_inputs: Inputs,
    *,
    latency: bool = True,
    predict: bool = False,
    **timing: Unpack[Timing],
) -> list[Measurement]:
    """What `measure` returns, for any number of models, all timed in turns on the same example."""
    example = Example.of(example_inputs)
    # A compiled model is timed compiled and counted as the module it was made from.
    sources: list[nn.Module] = [uncompiled(each) for each in models]
    costs = [count(each, example) for each in sources]
    latencies: tuple[Latency | None, ...] = (None,) * len(models)
    if latency:
        calls = [partial(example.run, each) for each in models]
        with undisturbed(*models, device=example.device):
            latencies = time_interleaved(calls, device=example.device, **timing)
    predicted: list[float | None] = [None] * len(models)
    if predict:
        with undisturbed(*sources, device=example.device):
            table = LatencyTable(device=example.device)
            predicted = [predicted_seconds(each, example, table) for each in sources]
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
            predicted=by_table,
            **vars(cost),
        )
        for each, cost, time, by_table in zip(sources, costs, latencies, predicted, strict=True)
    ]


def _checked(role: str, thing: Measurable) -> nn.Module:
    model: nn.Module = require_module(role, held_model(thing))
    if lazy := lazy_tensor(model):
        raise SparsityError(f"{lazy} has no shape yet; run {type(model).__name__} once before measuring it")
    return model
