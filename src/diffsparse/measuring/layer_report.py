"""Where a network spends its time: a table and bars by layer, of one network or of two that run in turns."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from diffsparse.errors import require_module
from diffsparse.example import Example
from diffsparse.measuring.cost import count
from diffsparse.measuring.latency import Latency, time_interleaved
from diffsparse.measuring.latency_table import LatencyTable
from diffsparse.measuring.onnx_graph import has_onnxruntime, onnx_call
from diffsparse.measuring.predict import predicted_seconds
from diffsparse.module_tree import held_model, modules_by_name
from diffsparse.undisturbed import undisturbed

RUNS, BAR = 15, 24
SMALL = 0.5
"""If layers with MACs take less than this share of the time, fewer MACs hardly help."""
OTHER = "(between layers)"


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One layer of one network."""

    macs: int
    params: int
    seconds: float
    """Median time of its calls in one forward pass."""


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """What `by_layer` measured; prints as tables."""

    networks: tuple[str, ...]
    """"before" and "after", or just "before"."""
    input: str
    layers: dict[str, dict[str, LayerTime]]
    """By network, then by layer."""
    latency: dict[str, tuple[Latency, ...]]
    """By what ran and on how many samples: one entry per network, timed in turns."""
    predicted: tuple[float, ...] | None
    """Seconds of each network on the example, by the table of latencies; None if nobody asked for it."""
    peak_activation_bytes: tuple[int, ...]

    @property
    def share_with_macs(self) -> float:
        """Share of the first network's time in layers that have MACs."""
        times = self.layers[self.networks[0]]
        total = sum(layer.seconds for layer in times.values())
        return sum(layer.seconds for layer in times.values() if layer.macs) / total if total else 1.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([f"by layer, input {self.input}", *_layer_lines(self), "", *_summary_lines(self)])


def by_layer(
    model: Any,
    example_inputs: Any,
    other: Any = None,
    *,
    seconds: float = 1.0,
    predict: bool = False,
    table: LatencyTable | None = None,
) -> LayerReport:
    """MACs, parameters and time of each layer, of one network or of two; whole networks are timed in turns.

    Whole networks run on the example and on its first sample, in torch and, if it is installed, in onnxruntime.

    Args:
        model: any model, or what `compact` returned.
        example_inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        other: a second network, for example the compact one.
        seconds: how long to time each network, in each setting.
        predict: whether to also say what the table of latencies predicts; missing layers are timed.
        table: that table; by default the one in your cache.

    Example:
        >>> report = by_layer(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.zeros(1, 3, 8, 8), seconds=0)
        >>> list(report.layers["before"]), report.layers["before"]["0"].macs
        (['0', '1', '(between layers)'], 7776)
    """
    example = Example.of(example_inputs)
    given = [require_module("model", held_model(each)) for each in (model, other) if each is not None]
    names = ("before", "after")[: len(given)]
    with undisturbed(*given, device=example.device):
        costs = [count(each, example) for each in given]
        whole = _timed(given, example, seconds)
        inner = [_layer_times(each, example, cost.macs_by_module) for each, cost in zip(given, costs, strict=True)]
        predicted = None
        if predict:
            table = table or LatencyTable(device=example.device)
            predicted = tuple(predicted_seconds(each, example, table) for each in given)
    return LayerReport(
        networks=names,
        input=str(example),
        layers=dict(zip(names, inner, strict=True)),
        latency=whole,
        predicted=predicted,
        peak_activation_bytes=tuple(cost.peak_activation_bytes for cost in costs),
    )


def _timed(models: Sequence[nn.Module], example: Example, seconds: float) -> dict[str, tuple[Latency, ...]]:
    settings = {f"batch {example.samples}": example}
    if example.samples > 1:
        settings = {"batch 1": example.first_sample(), **settings}
    found: dict[str, tuple[Latency, ...]] = {}
    for label, given in settings.items():
        calls: list[Callable[[], object]] = [partial(given.run, each) for each in models]
        found[f"torch, {label}"] = time_interleaved(calls, device=example.device, seconds=seconds)
        if has_onnxruntime() and example.device.type == "cpu":
            try:
                calls = [onnx_call(each, given) for each in models]
            except Exception:
                # not every model can be exported, and a table of times is no place to fail
                continue
            found[f"onnxruntime, {label}"] = time_interleaved(calls, device=example.device, seconds=seconds)
    return found


def _layer_times(model: nn.Module, example: Example, macs: dict[str, int]) -> dict[str, LayerTime]:
    modules = modules_by_name(model)
    leaves = {name: module for name, module in modules.items() if not module._modules}
    rounds: list[dict[str, float]] = []
    with _watched(leaves) as spent:
        for _ in range(RUNS + 2):
            spent.clear()
            began = time.perf_counter()
            example.run(model)
            torch.get_device_module(example.device).synchronize()
            rounds.append({**spent, OTHER: time.perf_counter() - began - sum(spent.values())})
    seen = dict.fromkeys(name for each in rounds for name in each)
    return {
        name: LayerTime(
            macs=sum(n for owner, n in macs.items() if owner not in leaves) if name == OTHER else macs.get(name, 0),
            params=sum(p.numel() for p in leaves[name].parameters()) if name in leaves else 0,
            seconds=median(each.get(name, 0.0) for each in rounds[2:]),
        )
        for name in (*(name for name in seen if name != OTHER), OTHER)
    }


@contextmanager
def _watched(leaves: dict[str, nn.Module]) -> Iterator[dict[str, float]]:
    """Seconds in each leaf, its hooks included as far as they come later than ours."""
    spent: dict[str, float] = {}
    began: dict[str, float] = {}
    handles = []

    def enter(name: str, *_: Any) -> None:
        began[name] = time.perf_counter()

    def leave(name: str, *_: Any) -> None:
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - began[name]

    for name, module in leaves.items():
        handles.append(module.register_forward_pre_hook(partial(enter, name), prepend=True))
        handles.append(module.register_forward_hook(partial(leave, name)))
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()


def _layer_lines(report: LayerReport) -> Iterator[str]:
    first, last = report.layers[report.networks[0]], report.layers[report.networks[-1]]
    names = list(dict.fromkeys([*(name for name in first if name != OTHER), *last, OTHER]))
    total = sum(layer.seconds for layer in first.values()) or 1.0
    longest = max((layer.seconds for layer in first.values()), default=0.0) or 1.0
    width, two = max(map(len, names)), len(report.networks) > 1
    after = f"{'MACs after':>15} {'ms after':>9}" if two else ""
    yield f"{'layer':<{width}} {'MACs':>15} {'parameters':>12} {'ms':>9} {after} {'share':>6}"
    gone = LayerTime(macs=0, params=0, seconds=0.0)
    for name in names:
        was, now = first.get(name, gone), last.get(name, gone)
        cells = f"{was.macs:>15,} {was.params:>12,} {1e3 * was.seconds:>9.3f}"
        cells += f" {now.macs:>15,} {1e3 * now.seconds:>9.3f}" if two else " "
        yield f"{name:<{width}} {cells} {was.seconds / total:>6.1%} {_bar(was, now if two else None, longest)}"


def _bar(was: LayerTime, now: LayerTime | None, longest: float) -> str:
    """The time as a bar; what the second network saves is light."""
    length = round(BAR * was.seconds / longest)
    kept = length if now is None else min(round(BAR * now.seconds / longest), length)
    return "█" * kept + "░" * (length - kept)


def _summary_lines(report: LayerReport) -> Iterator[str]:
    for label, times in report.latency.items():
        parts = [f"{1e3 * each.median:.3f} ms" for each in times]
        ratio = f"  ({times[-1].median / times[0].median:.2f} of the time)" if len(times) > 1 else ""
        yield f"{label:<24} {' -> '.join(parts)}{ratio}"
    if report.predicted is not None:
        yield f"{'predicted by the table':<24} {' -> '.join(f'{1e3 * each:.3f} ms' for each in report.predicted)}"
    yield f"{'peak of activations':<24} {' -> '.join(f'{size:,} bytes' for size in report.peak_activation_bytes)}"
    if report.share_with_macs < SMALL:
        yield (
            f"only {report.share_with_macs:.0%} of the time is spent in layers with MACs: this network, or its input, is "
            "too small for MACs to matter; fewer layers or a larger batch help more than fewer channels"
        )
