"""A layer as far as its time depends on it: its kind, widths and sizes; and how to run one like it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_OPERATORS: dict[str, Callable[..., Tensor]] = {
    f"conv{'_transpose' if transposed else ''}{d}d": getattr(F, f"conv{'_transpose' if transposed else ''}{d}d")
    for d in (1, 2, 3)
    for transposed in (False, True)
}

_ELEMENTWISE: dict[str, Callable[..., Tensor]] = {"elementwise": torch.relu, "curve": F.gelu}


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What decides about the time of a layer; `str` is its name in a table of latencies."""

    kind: str
    """conv1d to conv3d, conv_transpose1d to 3d, linear, batch_norm, attention, product, elementwise, or curve: an
    elementwise function that takes longer, such as gelu."""
    inputs: int
    outputs: int
    batch: int
    """Samples; for a linear layer, all rows; for attention and products, all matrices."""
    size: tuple[int, ...] = ()
    """Spatial sizes of the input; rows of queries and keys in attention, of the first matrix in a product."""
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    dtype: torch.dtype = torch.float32

    def with_widths(self, inputs: int, outputs: int) -> "LayerShape":
        """The same layer with other widths; one with groups keeps their size, and so may have fewer of them."""
        if self.kind == "batch_norm":
            return replace(self, inputs=outputs, outputs=outputs)
        if self.groups == 1:
            return replace(self, inputs=max(inputs, 1), outputs=max(outputs, 1))
        groups = max(round(self.groups * outputs / self.outputs), 1)
        each_in, each_out = self.inputs // self.groups, self.outputs // self.groups
        return replace(self, inputs=groups * each_in, outputs=groups * each_out, groups=groups)

    @property
    def one_width(self) -> bool:
        """Whether inputs follow outputs."""
        return self.kind == "batch_norm" or self.groups > 1

    def call(self, device: torch.device) -> Callable[[], Tensor]:
        """Runs such a layer on random numbers."""
        draw = partial(torch.randn, device=device, dtype=self.dtype)
        if self.kind == "linear":
            return partial(F.linear, draw(self.batch, self.inputs), draw(self.outputs, self.inputs), draw(self.outputs))
        if self.kind == "attention":
            q, k, v = (draw(1, self.batch, n, self.inputs) for n in (*self.size, self.size[-1]))
            return partial(F.scaled_dot_product_attention, q, k, v)
        if self.kind == "product":
            return partial(
                torch.bmm, draw(self.batch, *self.size, self.inputs), draw(self.batch, self.inputs, self.outputs)
            )
        x = draw(self.batch, self.inputs, *self.size)
        if self.kind in _ELEMENTWISE:
            return partial(_ELEMENTWISE[self.kind], x)
        if self.kind == "batch_norm":
            mean, variance, weight, bias = (draw(self.inputs).abs() for _ in range(4))
            return partial(F.batch_norm, x, mean, variance, weight, bias)
        ends = self.inputs, self.outputs // self.groups
        weight = draw(*(ends if "transpose" in self.kind else (self.outputs, self.inputs // self.groups)), *self.kernel)
        settings: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return partial(_OPERATORS[self.kind], x, weight, **settings, groups=self.groups)

    def __str__(self) -> str:
        parts = [self.kind, f"{self.inputs}->{self.outputs}", f"batch {self.batch}"]
        for name in ("size", "kernel", "stride", "padding", "dilation"):
            if value := getattr(self, name):
                parts.append(f"{name} {value if isinstance(value, str) else 'x'.join(map(str, value))}")
        parts += [f"groups {self.groups}"] if self.groups > 1 else []
        return ", ".join([*parts, str(self.dtype).removeprefix("torch.")])


def shape_of(
    op: str, x: tuple[int, ...], weight: tuple[int, ...] | None, dtype: torch.dtype, **settings: Any
) -> LayerShape | None:
    """The shape of a layer that runs the operator `op` on an input of shape `x`; None if tables do not have it."""
    if op == "linear" and weight is not None:
        return LayerShape(kind=op, inputs=weight[1], outputs=weight[0], batch=prod(x[:-1]), dtype=dtype)
    if op == "batch_norm" and len(x) > 1:
        return LayerShape(kind=op, inputs=x[1], outputs=x[1], batch=x[0], size=x[2:], dtype=dtype)
    if op not in _OPERATORS or weight is None or len(x) != len(weight):
        return None
    dims, groups = len(weight) - 2, settings.get("groups", 1)

    def several(name: str, default: int) -> Any:
        value = settings.get(name, default)
        return value if isinstance(value, str) else (value,) * dims if isinstance(value, int) else tuple(value)

    return LayerShape(
        kind=op,
        inputs=x[1],
        outputs=weight[1] * groups if "transpose" in op else weight[0],
        batch=x[0],
        size=x[2:],
        kernel=weight[2:],
        stride=several("stride", 1),
        padding=several("padding", 0),
        dilation=several("dilation", 1),
        groups=groups,
        dtype=dtype,
    )
