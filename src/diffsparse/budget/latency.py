"""Latency of the compact network as a function of the widths of its layers, from a table and a few real networks."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import torch

from diffsparse.budget.limits import Numbers
from diffsparse.measuring.latency_table import LatencyTable
from diffsparse.measuring.layer_shape import LayerShape

POINTS = 5
"""Widths at which a layer is timed, in each direction."""
MULTIPLE = 4
"""These widths are multiples of this, where layers are that wide."""


class LayerTimes:
    """Seconds of all layers by their widths: linear between the widths at which they were timed, 0 without channels.

    Args:
        rows: (layers, points) widths of outputs, rising; the first is 0.
        columns: the same for inputs; 0 and 1 for layers whose inputs follow outputs.
        seconds: (layers, points, points).
    """

    def __init__(self, rows: Numbers, columns: Numbers, seconds: Numbers) -> None:
        self.rows, self.columns, self.seconds = rows, columns, seconds

    @classmethod
    def measured(cls, shapes: Sequence[LayerShape | None], table: LatencyTable) -> "LayerTimes":
        """Of these layers; those that tables do not have take no time."""
        rows = np.array([_grid(1 if shape is None else shape.outputs) for shape in shapes]).reshape(-1, POINTS + 1)
        inputs = [1 if shape is None or shape.one_width else shape.inputs for shape in shapes]
        columns = np.array([_grid(width) for width in inputs]).reshape(-1, POINTS + 1)
        places = [
            ((place, i, j), shape.with_widths(int(columns[place, j]), int(rows[place, i])))
            for place, shape in enumerate(shapes)
            if shape is not None
            for i, j in product(range(1, POINTS + 1), repeat=2)
        ]
        seconds = np.zeros((len(shapes), POINTS + 1, POINTS + 1))
        found = table.layer_seconds([shape for _, shape in places])
        for (at, _), time in zip(places, found, strict=True):
            seconds[at] = time
        # without inputs of their own, layers take the time of their outputs
        follows = np.array([shape is not None and shape.one_width for shape in shapes], bool)
        seconds[follows, :, 0] = seconds[follows, :, 1]
        return cls(rows.astype(float), columns.astype(float), seconds)

    def of(self, rows: Numbers, columns: Numbers) -> Numbers:
        """Seconds of each layer with these widths."""
        (i, u), (j, v) = _place(self.rows, rows), _place(self.columns, columns)
        at, z = np.arange(len(rows)), self.seconds
        low = (1 - v) * z[at, i, j] + v * z[at, i, j + 1]
        high = (1 - v) * z[at, i + 1, j] + v * z[at, i + 1, j + 1]
        return np.asarray((1 - u) * low + u * high)


class LatencyModel:
    r"""Share of the whole network's latency, t = s \sum_l T_l(r_l, c_l) + b V + d L + a.

    T are the times of layers, V is how many numbers layers give out, which is what operations between layers work on,
    L is how many layers are left, each with some Python around it, and s, b, d, a >= 0 fit a few networks that were
    really timed.

    Args:
        times: of the layers.
        volumes: numbers that each layer gives out per output.
        weights: s, b, d and a, with which the share of the whole network is 1.
    """

    def __init__(self, times: LayerTimes, volumes: Numbers, weights: Numbers) -> None:
        self._times, self._volumes, self._weights = times, volumes, weights

    def share(self, rows: Numbers, columns: Numbers) -> float:
        """The share with these live outputs and inputs."""
        return float(self.terms(self._times, self._volumes, rows, columns) @ self._weights)

    @staticmethod
    def terms(times: LayerTimes, volumes: Numbers, rows: Numbers, columns: Numbers) -> Numbers:
        """What s, b, d and a are multiplied with."""
        return np.array([times.of(rows, columns).sum(), volumes @ rows, (rows > 0).sum(), 1.0])

    def marginals(self, rows: Numbers, columns: Numbers) -> tuple[Numbers, Numbers]:
        """What one output less, and one input less, of each layer saves."""
        now = self._times.of(rows, columns)
        per_row = now - self._times.of(np.maximum(rows - 1, 0), columns)
        per_column = now - self._times.of(rows, np.maximum(columns - 1, 0))
        scale, volume, layer, _ = self._weights
        last = (rows > 0) & (rows <= 1)
        return np.maximum(scale * per_row + volume * self._volumes + layer * last, 0), np.maximum(scale * per_column, 0)

    def state_dict(self) -> dict[str, Any]:
        """All numbers, so that a run that goes on elsewhere steers by the same."""
        times = {name: getattr(self._times, name).tolist() for name in ("rows", "columns", "seconds")}
        return times | {"volumes": self._volumes.tolist(), "weights": self._weights.tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LatencyModel":
        """What `state_dict` was taken of."""
        times = LayerTimes(*(np.array(state[name], float) for name in ("rows", "columns", "seconds")))
        return cls(times, np.array(state["volumes"], float), np.array(state["weights"], float))


def fitted_weights(terms: Numbers, seconds: Numbers) -> Numbers:
    """The weights >= 0 that fit best, relative to each network's time; the first network is the whole one.

    Example:
        >>> terms = np.array([[4.0, 3.0, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0], [3.0, 3.0, 2.0, 1.0]])
        >>> fitted_weights(terms, np.array([10.0, 6.0, 3.0, 9.0])).round(6).tolist()
        [0.2, 0.0, 0.1, 0.1]
    """
    best: tuple[float, Numbers] | None = None
    scaled = terms / seconds[:, None]
    counts, places = range(1, terms.shape[1] + 1), range(terms.shape[1])
    for chosen in (list(some) for count in counts for some in combinations(places, count)):
        found = np.linalg.lstsq(scaled[:, chosen], np.ones(len(seconds)), rcond=None)[0]
        weights = np.zeros(terms.shape[1])
        weights[chosen] = found
        apart = float(((scaled @ weights - 1) ** 2).sum())
        if (weights >= 0).all() and weights[:2].any() and (best is None or apart < best[0] - 1e-12):
            best = apart, weights
    first, *_, last = np.eye(terms.shape[1])
    weights = first if best is None else best[1]
    whole = float(terms[0] @ weights)
    return np.asarray(weights / whole) if whole > 0 else last


def agreed(numbers: Any) -> Any:
    """What the first process measured, in all processes: they have to take the same decisions."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return numbers
    held = [numbers]
    distributed.broadcast_object_list(held, src=0)
    return held[0]


def _grid(width: int) -> list[int]:
    """0 and `POINTS` widths up to this one, which may repeat."""
    multiple = MULTIPLE if width >= MULTIPLE * (POINTS - 1) else 1
    inner = [max(multiple * round(width * k / (POINTS - 1) / multiple), 1) for k in range(1, POINTS - 1)]
    return [0, 1, *inner, width]


def _place(grid: Numbers, width: Numbers) -> tuple[Any, Numbers]:
    """Between which points of its own grid each width lies, and how far it is from the first of them."""
    at = np.clip((grid <= width[:, None]).sum(1) - 1, 0, grid.shape[1] - 2)
    each = np.arange(len(grid))
    low, high = grid[each, at], grid[each, at + 1]
    return at, np.clip(np.where(high > low, (width - low) / np.maximum(high - low, 1), 0.0), 0, 1)
