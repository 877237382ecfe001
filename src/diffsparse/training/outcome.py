"""What a run says of its network before and after: layer by layer, how fast, how large as a file."""

from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.checkpoint import save
from diffsparse.measuring import Measurement
from diffsparse.module_tree import layer_widths, modules_by_name

TIMING: dict[str, Any] = {"seconds": 0.2, "warmup": 2, "min_runs": 10}
"""How long each of the two networks is timed at the end of a run."""


def layer_table(
    plain: nn.Module, small: nn.Module, before: Measurement, after: Measurement
) -> list[dict[str, str | list[int]]]:
    """Inputs, outputs, parameters and MACs of each layer, in `plain` and in `small`: 0 there if the layer is gone."""
    had, left = modules_by_name(plain), modules_by_name(small)
    widths, now = layer_widths(plain), layer_widths(small)
    rows: list[dict[str, str | list[int]]] = []
    for name, width in widths.items():
        there = [had[name], *([left[name]] if name in now else [])]
        numbers = {
            "inputs": [_inputs(module) for module in there],
            "outputs": [width, *([now[name]] if name in now else [])],
            "params": [sum(p.numel() for p in module.parameters(recurse=False)) for module in there],
            "macs": [cost.macs_by_module.get(name, 0) for cost, _ in zip((before, after), there, strict=False)],
        }
        rows.append({"name": name, "kind": _kind(had[name])} | {key: [*two, 0][:2] for key, two in numbers.items()})
    return rows


def _inputs(module: nn.Module) -> int:
    sizes = (getattr(module, key, None) for key in ("in_channels", "in_features", "nx"))
    return next((size for size in sizes if isinstance(size, int)), 0)


def _kind(module: nn.Module) -> str:
    kernel = getattr(module, "kernel_size", None)
    return " ".join([type(module).__name__, *(["x".join(map(str, kernel))] if isinstance(kernel, tuple) else [])])


def latencies(before: Measurement, after: Measurement) -> dict[str, Any] | None:
    """Seconds of one input through both networks, timed in turns; None if they were not timed."""
    if before.latency is None or after.latency is None:
        return None
    both = {"plain": before.latency.as_dict(), "compact": after.latency.as_dict()}
    return both | {"device": before.device, "threads": before.threads, "input": before.input}


def file_size(model: nn.Module, folder: Path) -> int:
    """Bytes of the file that `save` writes for `model`; the file is gone afterwards."""
    # the name of a draft, which a later start of the run removes if this one is killed here
    path = folder / ".diffsparse-size.tmp"
    try:
        save(model, path)
        return path.stat().st_size
    finally:
        path.unlink(missing_ok=True)
