"""What a table of latencies says of a network: the sum over all operations of one forward pass."""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diffsparse.example import Example
from diffsparse.measuring.latency_table import LatencyTable
from diffsparse.measuring.layer_shape import LayerShape, shape_of

aten = torch.ops.aten
_NORMS = {aten.native_batch_norm, aten._native_batch_norm_legit_no_training}
ROUND = 4096
"""Elementwise operations are timed at multiples of this many numbers, so that a table stays small."""


def predicted_seconds(model: nn.Module, example: Example, table: LatencyTable) -> float:
    """Seconds of one forward pass by the table; layers and operations that it does not have are timed.

    Convolutions, linear layers and batch norms are those of the table; any other operation counts as an elementwise
    one of as many numbers as it makes. What Python takes between operations is not in it.
    """
    with _Shapes() as seen:
        example.run(model)
    return sum(table.layer_seconds(seen.shapes))


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the shape of every operation that makes a new tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[LayerShape] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [leaf.untyped_storage()._cdata for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        made = next((leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)), None)
        if made is not None and made.untyped_storage()._cdata not in given and made.numel():
            self.shapes.append(_layer(func.overloadpacket, args) or _elementwise(made))
        return out


def _layer(op: Any, args: Any) -> LayerShape | None:
    if op is aten.convolution:
        x, weight, _, stride, padding, dilation, transposed, _, groups = args
        kind = f"conv{'_transpose' if transposed else ''}{weight.dim() - 2}d"
        settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return shape_of(kind, tuple(x.shape), tuple(weight.shape), x.dtype, **settings)
    if op in _NORMS:
        return shape_of("batch_norm", tuple(args[0].shape), None, args[0].dtype)
    if op in {aten.mm, aten.addmm}:
        x, weight = args[-2:]
        return shape_of("linear", tuple(x.shape), tuple(weight.shape)[::-1], x.dtype)
    return None


def _elementwise(made: Tensor) -> LayerShape:
    width = -(-prod(made.shape) // ROUND) * ROUND
    dtype = made.dtype if made.is_floating_point() else torch.float32
    return LayerShape(kind="elementwise", inputs=width, outputs=width, batch=1, dtype=dtype)
