"""What a table of latencies says of a network: the sum over all operations of one forward pass."""

from functools import partial
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
_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_attention_math,
}
_CURVES = {aten.gelu, aten.gelu_, aten.tanh, aten.sigmoid, aten.silu, aten.exp, aten._softmax, aten.native_layer_norm}
ROUND = 4096
"""Elementwise operations are timed at multiples of this many numbers, so that a table stays small."""
OVERHEAD = "python around an operation"
"""What the table calls the time that two calls of modules take, beyond the operation in them."""


def predicted_seconds(model: nn.Module, example: Example, table: LatencyTable) -> float:
    """Seconds of one forward pass by the table; layers and operations that it does not have are timed.

    Convolutions, linear layers, batch norms and products are those of the table; any other operation counts as an
    elementwise one of as many numbers as it makes. Around each of them is Python: a module, and one that calls it.
    """
    overhead = table.seconds_of(OVERHEAD, lambda: _overhead(table))
    shapes = _shapes(model, example)
    return sum(table.layer_seconds(shapes)) + overhead * len(shapes)


def _overhead(table: LatencyTable) -> float:
    """What a module in a module takes more than the operation that it runs."""
    x, network = torch.zeros(1, device=table.device), nn.Sequential(nn.ReLU())
    with torch.no_grad():
        alone, within = table.in_turns([partial(torch.relu, x), partial(network, x)], seconds=0.1)
    return max(within - alone, 0.0)


def _shapes(model: nn.Module, example: Example) -> list[LayerShape]:
    """Of every operation in one pass; those of encoders, which torch fuses, one by one."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    seen = _Shapes()
    try:
        with seen:
            example.run(model)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return seen.shapes


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
            op = func.overloadpacket
            self.shapes.append(_layer(op, args) or _elementwise(op, args, made))
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
    if op in _ATTENTION:
        q, k = args[:2]
        return LayerShape(
            kind="attention",
            inputs=q.shape[-1],
            outputs=q.shape[-1],
            batch=prod(q.shape[:-2]),
            size=(q.shape[-2], k.shape[-2]),
            dtype=q.dtype,
        )
    if op in {aten.bmm, aten.baddbmm}:
        x, y = args[-2:]
        batch, rows, inputs = x.shape
        return LayerShape(kind="product", inputs=inputs, outputs=y.shape[-1], batch=batch, size=(rows,), dtype=x.dtype)
    return None


def _elementwise(op: Any, args: Any, made: Tensor) -> LayerShape:
    """Any other operation; pools and means read more than they make."""
    pools, numbers = "pool" in op.__name__, prod(made.shape)
    if pools or op in {aten.mean, aten.sum}:
        numbers = max(numbers, args[0].numel())
    width = -(-numbers // ROUND) * ROUND
    dtype = made.dtype if made.is_floating_point() else torch.float32
    kind = "curve" if pools or op in _CURVES else "elementwise"
    return LayerShape(kind=kind, inputs=width, outputs=width, batch=1, dtype=dtype)
