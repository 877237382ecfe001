"""The results of a measurement, as data and as a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diffsparse.measuring.cost import Cost
from diffsparse.measuring.latency import Latency

# What the headline counts; elementwise operations are a separate figure.
CONVENTION = "FLOPs = 2 x MACs of convolutions, linear layers and matrix products"


@dataclass(frozen=True, kw_only=True)
class Measurement(Cost):
    """Cost of one model on one example; prints as a table."""

    name: str
    """Class of the model."""
    input: str
    """Types and shapes of the example; every figure is for the whole example."""
    params: int
    """Elements of the parameters, gates included; shared parameters count once."""
    buffers: int
    """Elements of the buffers."""
    bytes: int
    """Memory of parameters and buffers."""
    latency: Latency | None
    """Time of a forward pass; None if it was not measured."""
    device: str
    threads: int
    """Threads that torch used inside an operation on the CPU."""
    predicted: float | None = None
    """Seconds of a forward pass by the table of latencies; None if nobody asked for it."""
    convention: str = CONVENTION

    @property
    def flops(self) -> int:
        """Twice the MACs; see `convention`."""
        return 2 * self.macs

    @property
    def flops_with_elementwise(self) -> int:
        return self.flops + self.elementwise_flops

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"flops": self.flops, "flops_with_elementwise": self.flops_with_elementwise}

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {_setting(self)}", *_columns([_rows(self)]), self.convention])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two models on the same example, timed in turns; prints as a table."""

    model: Measurement
    other: Measurement
    labels: tuple[str, str] = ("model", "other")
    """What the two are called in the table."""

    @property
    def ratios(self) -> dict[str, float | None]:
        """Each figure of `other` divided by that of `model`; None if the latter is 0 or unknown."""
        pairs = {key: (getattr(self.model, key), getattr(self.other, key)) for key in _FIGURES}
        ratios = {key: other / model if model else None for key, (model, other) in pairs.items()}
        return ratios | {"latency": 1 / self.speedup if self.speedup else None}

    @property
    def speedup(self) -> float | None:
        """Median time of `model` divided by that of `other`; None if they were not timed."""
        if self.model.latency is None or self.other.latency is None or self.other.latency.median == 0:
            return None
        return self.model.latency.median / self.other.latency.median

    def as_dict(self) -> dict[str, Any]:
        figures = {"model": self.model.as_dict(), "other": self.other.as_dict()}
        return figures | {"ratios": self.ratios, "speedup": self.speedup}

    def __str__(self) -> str:
        cells = {key: "-" if ratio is None else f"{ratio:.4f}" for key, ratio in self.ratios.items()}
        model, other = self.labels
        ratios = {"": f"{other} / {model}"} | {label: cells[key] for key, label in (_FIGURES | _LATENCY).items()}
        names = [{"": model} | _rows(self.model), {"": other} | _rows(self.other)]
        title = f"{self.model.name} ({model}) and {self.other.name} ({other}): {_setting(self.model)}"
        speedup = [] if self.speedup is None else [f"speed-up {self.speedup:.2f}x (ratio of medians, timed in turns)"]
        return "\n".join([title, *_columns([*names, ratios]), *speedup, self.model.convention])


# The rows of a table, with their labels.
_FIGURES = {
    "macs": "MACs",
    "flops": "FLOPs",
    "product_macs": "MACs of attention products among them",
    "flops_with_elementwise": "FLOPs with BN, ReLU, pooling, bias",
    "params": "parameters",
    "bytes": "bytes of parameters and buffers",
    "peak_activation_bytes": "peak bytes of activations",
}
_LATENCY = {"latency": "latency, median ms"}


def _setting(measurement: Measurement) -> str:
    threads = f"{measurement.threads} thread{'' if measurement.threads == 1 else 's'}"
    return f"input {measurement.input}, {measurement.device}, {threads}"


def _rows(measurement: Measurement) -> dict[str, str]:
    rows = {label: f"{getattr(measurement, key):,}" for key, label in _FIGURES.items()}
    if measurement.predicted is not None:
        rows["latency, predicted ms"] = f"{1e3 * measurement.predicted:.3f}"
    if (latency := measurement.latency) is not None:
        rows[_LATENCY["latency"]] = f"{1e3 * latency.median:.3f}"
        rows["latency, quartiles"] = f"{1e3 * latency.lower_quartile:.3f} .. {1e3 * latency.upper_quartile:.3f}"
        rows["latency, runs"] = f"{latency.runs:,}"
    return rows


def _columns(columns: Sequence[dict[str, str]]) -> list[str]:
    """Rows in the order of the first column; labels are left-aligned, figures right-aligned."""
    labels = list(columns[0])
    widths = [max(map(len, column.values())) for column in columns]
    label_width = max(map(len, labels))
    lines = []
    for label in labels:
        cells = [f"{column.get(label, ''):>{width}}" for column, width in zip(columns, widths, strict=True)]
        lines.append("  ".join([f"{label:<{label_width}}", *cells]).rstrip())
    return lines
