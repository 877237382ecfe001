"""Records every tensor operation of a forward pass: memory in use, and operations that FLOP counters disagree about."""

import weakref
from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

_NORMS = {
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_no_training,
    aten.cudnn_batch_norm,
    aten.miopen_batch_norm,
}
_RELUS = {aten.relu, aten.relu_}
_WINDOWS = {
    aten.avg_pool1d,
    aten.avg_pool2d,
    aten.avg_pool3d,
    aten.max_pool2d_with_indices,
    aten.max_pool3d_with_indices,
}
# Pooling to one value per channel arrives as a mean.
_WHOLE = {aten.mean, aten._adaptive_avg_pool2d, aten._adaptive_avg_pool3d}
_BATCHED = {aten.bmm: 0, aten.baddbmm: 1}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches a forward pass.

    Args:
        model: its parameters and buffers do not count as activations.
        inputs: the input tensors, which are alive from the start.

    Attributes:
        peak_bytes: the most memory of tensors alive at any operation, inputs included.
        elementwise_flops: 2 per element of a batch norm, 1 per element of a ReLU, element pooled or bias added.
        weight_macs: MACs of batched products with a parameter on one side, as `einsum` makes them.
    """

    def __init__(self, model: nn.Module, inputs: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self.elementwise_flops = 0
        self.weight_macs = 0
        self._bytes = 0
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
            left, right = args[_BATCHED[op] : _BATCHED[op] + 2]
            if not self._weights.isdisjoint((left.untyped_storage()._cdata, right.untyped_storage()._cdata)):
                self.weight_macs += out.numel() * left.shape[-1]


def dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that hold the memory of `tensor`: itself, unless its layout is sparse.

    Example:
        >>> [part.numel() for part in dense_parts(torch.eye(3).to_sparse())]
        [6, 3]
    """
    if tensor.layout == torch.strided:
        return (tensor,)
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()
