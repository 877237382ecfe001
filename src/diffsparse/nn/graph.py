"""Layers on a graph: a doubly stochastic adjacency that is learned, with exact zeros, and convolutions over it."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.functional import balanced_normalize, matrix_threshold
from diffsparse.functional.groups import full_precision, initial_beta
from diffsparse.gates import Gate, Source
from diffsparse.gates.gate import checked_values, closed_beta, gate_dtype
from diffsparse.gates.matrix import gamma_of

# Measured by benchmarks/graph_speed.py on a CPU: sparse products of batches are faster below this density and from this
# size on; a single graph needs twice the size.
SPARSE_DENSITY = 0.05
SPARSE_NODES = 150


class SparseAdjacency(Gate):
    r"""The weights with which each of n nodes reads the others, row i for node i; rows and columns sum to about 1.

    .. math:: \tilde A_{ij} = \bigl(\gamma_{ij} - \sigma(\beta^r_i)\,\|\gamma_{i:}\|_1
              - \sigma(\beta^c_j)\,\|\gamma_{:j}\|_1\bigr)_+, \quad \gamma_{ij} = e^{\alpha_{ij}}, \qquad
              A = \mathrm{balance}(\tilde A)

    It is a gate whose values are the normalised A: `Penalty(model, norm=Lp(0.5), ...)` adds
    :math:`\frac\lambda2 \sum_i R(A_{i:}) + R(A_{:i})`, and `sparsity` counts the zeros of A. Calling it computes A: a
    model calls it once per forward pass and hands the result to each of its `GraphConvolution` layers.

    Args:
        nodes: n, at least 2.
        mask: bool, (n, n), the entries that may be used, by default all; the others are exactly zero and count in no
            norm. It includes the diagonal if nodes may read themselves.
        threshold: False leaves the thresholds out: A is `balance(exp(alpha))`, with no zeros but those of the mask.
        balance: the normalisation, a function from (n, n) to (n, n) that does not depend on the scale of its argument:
            `functional.balanced_normalize`, `functional.balanced_limit` or a `functools.partial` of them. The limit is
            exact and needs less memory, but edges that lie on no cycle, such as one-way streets, vanish.
        noise: standard deviation of `alpha` at the start, around 0.
        rgf: `elu_alpha` of rectified gradient flow, or None.

    Each `beta` starts at -log(n^2 + n - 1): the thresholds take 2 / (n + 1) of gamma at first. A node whose row or
    column has died stays apart from the others, with zeros and finite gradients.

    Example:
        >>> adjacency = SparseAdjacency(2, noise=0.0)
        >>> adjacency.alpha.data = torch.tensor([[0.0, -3.0], [-3.0, 0.0]])
        >>> adjacency().detach()
        tensor([[1.0000, 0.0000],
                [0.0000, 1.0000]])
    """

    beta_row: nn.Parameter | None
    beta_col: nn.Parameter | None
    mask: Tensor | None

    def __init__(
        self,
        nodes: int,
        *,
        mask: Tensor | None = None,
        threshold: bool = True,
        balance: Callable[[Tensor], Tensor] = balanced_normalize,
        noise: float = 0.01,
        rgf: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(rgf)
        self.nodes = require_whole("nodes", nodes, low=2)
        self.noise = require_number("noise", noise, low=0)
        if not callable(balance):
            raise SparsityError(f"balance must be a function such as balanced_normalize, got {balance!r}")
        self.balance = balance
        self.alpha = nn.Parameter(torch.empty(nodes, nodes, device=device, dtype=gate_dtype(dtype)))
        for name in ("beta_row", "beta_col"):
            self.register_parameter(name, nn.Parameter(self.alpha.detach().new_empty(nodes)) if threshold else None)
        self.register_buffer("mask", None if mask is None else _checked(mask, nodes).to(self.alpha.device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every `alpha` near 0, drawn with torch's random numbers, and every `beta` at the paper's start."""
        self.alpha.detach().normal_(0.0, self.noise)
        for beta in (self.beta_row, self.beta_col):
            if beta is not None:
                beta.detach().fill_(initial_beta(self.nodes))

    def forward(self) -> Tensor:
        alpha = self.alpha if self.mask is None else self.alpha.masked_fill(~self.mask, -torch.inf)
        # Balancing forgets the scale, so the largest gamma can be 1 without changing A.
        alpha = alpha - alpha.detach().max()
        if self.beta_row is None or self.beta_col is None:
            return self.balance(alpha.exp())
        kept = matrix_threshold(alpha, self.beta_row, self.beta_col, rgf=self.rgf)
        # Rectified flow would let gradients into entries that are not allowed.
        return self.balance(kept if self.mask is None else kept.masked_fill(~self.mask, 0.0))

    @torch.no_grad()
    def set_values(self, values: Tensor) -> None:
        """As for other gates; the values are balanced again."""
        given = checked_values(values)
        thresholds = [beta for beta in (self.beta_row, self.beta_col) if beta is not None]
        gamma = gamma_of(given, self.mask) if thresholds else given
        # entries outside the mask are never used
        self.alpha.copy_(gamma.clamp_min(torch.finfo(self.alpha.dtype).tiny).log())
        for beta in thresholds:
            beta.fill_(initial_beta(self.nodes) if bool(given.any()) else closed_beta(self.nodes))
        self._revive(given)

    def materialise(self) -> nn.Module:
        """It stays as it is: training goes on learning the graph of a compact model, and nodes are never removed."""
        return self

    def parameter_sources(self) -> dict[str, Source]:
        return {}

    def groups(self, values: Tensor) -> tuple[Tensor, ...]:
        return values, values.mT

    def extra_repr(self) -> str:
        masked = "" if self.mask is None else f", {int(self.mask.sum())} allowed entries"
        plain = "" if self.beta_row is not None else ", no thresholds"
        return f"{self.nodes} nodes{masked}{plain}{'' if self.rgf is None else f', rgf={self.rgf}'}"


class GraphConvolution(nn.Module):
    r"""The linear part of a graph convolution, :math:`A H W + b`; the activation is the caller's.

    Args:
        in_features, out_features: the width of H and of the result.
        bias: whether there is a b.

    Shape: `h` (..., n, in_features) and `a` (n, n), dense or CSR, give (..., n, out_features).

    The adjacency is an argument, so it is computed once for any number of layers. In eval mode a dense `a` with few
    non-zeros is multiplied as a sparse one, see `sparse_if_faster`.

    Example:
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
        require_whole("in_features", in_features, low=1)
        require_whole("out_features", out_features, low=1)
        self.linear = nn.Linear(in_features, out_features, bias=False, device=device, dtype=dtype)
        shift = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", shift)

    def forward(self, h: Tensor, a: Tensor) -> Tensor:
        self._check(h, a)
        if not self.training:
            a = sparse_if_faster(a)
        if a.layout == torch.strided:
            features: Tensor = self.linear(h)
            mixed = a.to(features.dtype) @ features
        else:
            # With the nodes first the product is one of matrices; the next layer finds its input laid out for that.
            features = self.linear(h.movedim(-2, 0))
            with full_precision(h.device):
                flat = a @ features.to(a.dtype).flatten(1)
            mixed = flat.to(features.dtype).reshape(features.shape).movedim(0, -2)
        return mixed if self.bias is None else mixed + self.bias

    def _check(self, h: Tensor, a: Tensor) -> None:
        width = self.linear.in_features
        if not isinstance(a, Tensor):
            raise SparsityError(f"GraphConvolution needs the matrix A, such as adjacency(), got {type(a).__name__}")
        if a.dim() != 2 or a.shape[0] != a.shape[1]:
            raise SparsityError(f"the adjacency of a GraphConvolution must be (n, n), got shape {tuple(a.shape)}")
        if h.dim() < 2 or tuple(h.shape[-2:]) != (len(a), width):
            wanted = f"features of shape (..., {len(a)}, {width}) for {len(a)} nodes"
            raise SparsityError(f"GraphConvolution expects {wanted}, got {tuple(h.shape)}")


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


def _checked(mask: Tensor, nodes: int) -> Tensor:
    """A copy of `mask`; raises unless it is a bool tensor (nodes, nodes) with an entry that may be used."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise SparsityError(f"the mask of an adjacency must be a tensor of bools, got {got}")
    if tuple(mask.shape) != (nodes, nodes):
        raise SparsityError(f"the mask of {nodes} nodes must have shape {(nodes, nodes)}, got {tuple(mask.shape)}")
    if not bool(mask.any()):
        raise SparsityError("the mask of an adjacency must allow at least one entry, got none")
    return mask.clone()
