"""Graph convolution: features mixed over the edges of an adjacency, then transformed."""

import warnings

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole
from diffsparse.functional.groups import full_precision

# Measured by benchmarks/graph_speed.py on a CPU: sparse products of batches are faster below this density and from this
# size on; a single graph needs twice the size.
SPARSE_DENSITY = 0.05
SPARSE_NODES = 150


class GraphConvolution(nn.Module):
    r"""The linear part of a graph convolution, :math:`A H W + b`; the activation is the caller's.

    Args:
        in_features, out_features: the width of H and of the result.
        bias: whether there is a b.

    Shape: `h` (..., n, in_features) and `a` (n, n), dense or CSR, give (..., n, out_features).

    The adjacency is an argument, so it is computed once for any number of layers. In eval mode a dense `a` with few
    non-zeros is multiplied as a sparse one, see `sparse_if_faster`.

    Example:
        >>> from diffsparse.nn import SparseAdjacency
        >>> adjacency, layer = SparseAdjacency(5), GraphConvolution(3, 2)
        >>> layer(torch.randn(7, 5, 3), adjacency()).shape
        torch.Size([7, 5, 2])
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for key, width in {"in_features": in_features, "out_features": out_features}.items():
            require_whole(key, width, low=1)
        self.linear = nn.Linear(in_features, out_features, bias=False, device=device, dtype=dtype)
        shift = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", shift)

    def forward(self, h: Tensor, a: Tensor) -> Tensor:
        self._check(h, a)
        if not self.training:
            a = sparse_if_faster(a)
        mixed = self._dense_product(a, h) if a.layout == torch.strided else self._sparse_product(a, h)
        return mixed if self.bias is None else mixed + self.bias

    def _dense_product(self, a: Tensor, h: Tensor) -> Tensor:
        features: Tensor = self.linear(h)
        return a.to(features.dtype) @ features

    def _sparse_product(self, a: Tensor, h: Tensor) -> Tensor:
        # With the nodes first the product is one of matrices; the next layer finds its input laid out for that.
        features: Tensor = self.linear(h.movedim(-2, 0))
        with full_precision(h.device):
            flat = a @ features.to(a.dtype).flatten(1)
        return flat.to(features.dtype).reshape(features.shape).movedim(0, -2)

    def _check(self, h: Tensor, a: Tensor) -> None:
        width = self.linear.in_features
        if not isinstance(a, Tensor):
            raise SparsityError(f"GraphConvolution needs the matrix A, such as adjacency(), got {type(a).__name__}")
        if a.dim() != 2 or a.shape[0] != a.shape[1]:
            raise SparsityError(f"the adjacency of a GraphConvolution must be (n, n), got shape {tuple(a.shape)}")
        if h.dim() < 2 or tuple(h.shape[-2:]) != (len(a), width):
            raise SparsityError(
                f"GraphConvolution expects features of shape (..., {len(a)}, {width}) for {len(a)} nodes, "
                f"got {tuple(h.shape)}"
            )


def sparse_if_faster(a: Tensor) -> Tensor:
    """`a` as a CSR tensor where products with it are faster that way and need no gradient of `a`, else `a` itself.

    That is on a CPU, from `SPARSE_NODES` nodes and up to a density of `SPARSE_DENSITY`, outside autocast and compiled
    graphs. In eval mode a model with several layers calls this once and gives them the result.
    """
    if torch.compiler.is_compiling() or a.layout != torch.strided or a.requires_grad or a.device.type != "cpu":
        return a
    if len(a) < SPARSE_NODES or a.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return a
    if int(a.count_nonzero()) > SPARSE_DENSITY * a.numel():
        return a
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return a.to_sparse_csr()
