"""Multiply-accumulates, elementwise operations and memory of one forward pass."""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.undisturbed import undisturbed

Shape: TypeAlias = tuple[int, ...]

aten = torch.ops.aten


def _ops(names: str) -> set[Any]:
    return {getattr(aten, name) for name in names.split()}


_LAYERS = _ops(
    "mm addmm _scaled_mm mv addmv mkldnn_rnn_layer _cudnn_rnn convolution _convolution cudnn_convolution "
    "convolution_overrideable _slow_conv2d_forward"
)
_NORMS = _ops(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm miopen_batch_norm"
)
_RELUS = _ops("relu relu_")
_WINDOWS = _ops("avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices")
# Pooling to one value per channel arrives as a mean.
_WHOLE = _ops("mean _adaptive_avg_pool2d _adaptive_avg_pool3d")
# Where the two factors of a batched product are among its arguments.
_BATCHED = {aten.bmm: slice(0, 2), aten.baddbmm: slice(1, 3)}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Operations and memory of one forward pass on an example."""

    macs: int
    """Multiply-accumulates of convolutions, linear layers and matrix products, those of attention included."""
    product_macs: int
    """The part of `macs` in batched matrix products without a parameter: queries with keys, attention with values."""
    elementwise_flops: int
    """2 per element of a batch norm, 1 per element of a ReLU, per element pooled and per bias added; not in `macs`."""
    peak_activation_bytes: int
    """The most memory of tensors alive at once: inputs, intermediate and output tensors, but not parameters, buffers or
    the workspace inside a kernel."""
    macs_by_module: dict[str, int]
    """`macs` by the innermost module that did them; "" is the model itself, modules without MACs are left out."""

    @property
    def layer_macs(self) -> int:
        """`macs` without `product_macs`: convolutions and linear layers alone, as many papers count."""
        return self.macs - self.product_macs


def count(model: nn.Module, example: Example) -> Cost:
    """Count one forward pass of `model` in eval mode; the figures are for the whole example, not per sample.

    Operations are counted as they are executed, so functional calls, raw parameters and layers used twice are counted
    correctly. A two-dimensional matrix product counts as a linear layer, whatever its operands are.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    with undisturbed(model, device=example.device), _plain_kernels():
        recorder = Recorder(model, example.tensors)
        # The counter is entered last, so it acts first and the recorder sees the operations it decomposes into.
        with recorder, counter, _own_share(model, lambda: counter.get_total_flops() // 2) as macs_by_module:
            example.run(model)
    macs, done = counter.get_total_flops() // 2, counter.flop_counts["Global"]
    of_layers = sum(flops for op, flops in done.items() if op in _LAYERS) // 2 + recorder.weight_macs
    return Cost(
        macs=macs,
        product_macs=macs - of_layers,
        elementwise_flops=recorder.elementwise_flops,
        peak_activation_bytes=recorder.peak_bytes,
        macs_by_module={name: own for name, own in macs_by_module.items() if own},
    )


def samples(model: nn.Module, example: Example, macs: int) -> int:
    """How many samples the `macs` of `model` on the example are for; 1 if its first dimension is not a batch."""
    if example.samples > 1:
        try:
            one = count(model, example.first_sample()).macs
        except SparsityError:
            return 1
        return example.samples if one * example.samples == macs else 1
    return 1


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches a forward pass of `model` and counts `peak_bytes` and `elementwise_flops`, described in `Cost`.

    `weight_macs` are those of batched products with a parameter on one side, as `einsum` makes them. The parameters and
    buffers of the model are no activations; `inputs` are alive from the start.
    """

    def __init__(self, model: nn.Module, inputs: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = self.elementwise_flops = self.weight_macs = self._bytes = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._weights = {
            part.untyped_storage()._cdata
            for tensor in (*model.parameters(), *model.buffers())
            for part in dense_parts(tensor)
        }
        for tensor in inputs:
            self._watch(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            self._watch(tensor)
        if tensors:
            self._count(func.overloadpacket, args, tensors[0])
        return out

    def _watch(self, tensor: Tensor) -> None:
        for part in dense_parts(tensor):
            storage = part.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self._weights or key in self._alive:
                continue

            def free(_: Any, key: int = key, size: int = size) -> None:
                del self._alive[key]
                self._bytes -= size

            self._alive[key] = weakref.ref(storage, free)
            self._bytes += size
            self.peak_bytes = max(self.peak_bytes, self._bytes)

    def _count(self, op: Any, args: Any, out: Tensor) -> None:
        if op in _NORMS:
            self.elementwise_flops += 2 * out.numel()
        elif op in _RELUS or op is aten.addmm or (op is aten.convolution and args[2] is not None):
            self.elementwise_flops += out.numel()
        elif op in _WINDOWS:
            kernel = args[1] * (out.dim() - 2) if len(args[1]) == 1 else args[1]
            self.elementwise_flops += out.numel() * prod(kernel)
        elif op in _WHOLE:
            self.elementwise_flops += args[0].numel()
        elif op in _BATCHED:
            left, right = args[_BATCHED[op]]
            if not self._weights.isdisjoint((left.untyped_storage()._cdata, right.untyped_storage()._cdata)):
                self.weight_macs += out.numel() * left.shape[-1]


def dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that hold the memory of `tensor`: itself, unless its layout is sparse."""
    if tensor.layout == torch.strided:
        return (tensor,)
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Use kernels that a counter can look into: no fused transformer layers, no compiled graphs."""
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        # Importing it takes seconds, and if nobody has, nothing is compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _own_share(model: nn.Module, total: Callable[[], int]) -> Iterator[dict[str, int]]:
    """Attribute the growth of `total()` to the innermost module that is running."""
    names = {module: name for name, module in model.named_modules()}
    own = dict.fromkeys(names.values(), 0)
    running: list[str] = []
    charged = 0

    def charge() -> None:
        nonlocal charged
        now = total()
        if running:
            own[running[-1]] += now - charged
        charged = now

    def enter(module: nn.Module, args: Any) -> None:
        charge()
        # A module outside the tree counts for the module that called it.
        running.append(names.get(module, running[-1] if running else ""))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        charge()
        running.pop()

    # Global hooks leave the user's modules untouched.
    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True):
        yield own


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[-2] * (width + value[-1])


def _rnn_cuda(x: Shape, weights: list[Shape], *_: Any, **__: Any) -> int:
    return 2 * prod(x[:-1]) * sum(prod(weight) for weight in weights if len(weight) == 2)


# Formulas missing in torch's table; each takes shapes and returns FLOPs.
_FORMULAS = {
    aten.mv: lambda matrix, *_, **__: 2 * prod(matrix),
    aten.addmv: lambda added, matrix, *_, **__: 2 * prod(matrix),
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten.mkldnn_rnn_layer: lambda x, w_in, w_hidden, *_, **__: 2 * prod(x[:-1]) * (prod(w_in) + prod(w_hidden)),
    aten._cudnn_rnn: _rnn_cuda,
}
