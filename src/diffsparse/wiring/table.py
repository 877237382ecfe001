"""A stage for inference that keeps the states of its nodes in one table, a row a node."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Bias = Tensor | None


class Mix(nn.Module):
    """Rows of the table (sources, pixels) to the sums that target nodes receive (outputs, pixels)."""

    bias: nn.Parameter | None

    def __init__(self, matrix: Tensor, bias: Bias) -> None:
        super().__init__()
        self.outputs, self.sources = matrix.shape
        self.bias = None if bias is None else _fixed(bias[:, None])

    def extra_repr(self) -> str:
        return f"sources={self.sources}, outputs={self.outputs}"


class DenseMix(Mix):
    """One dense matrix product."""

    def __init__(self, matrix: Tensor, bias: Bias = None) -> None:
        super().__init__(matrix, bias)
        self.weight = _fixed(matrix)

    def forward(self, table: Tensor) -> Tensor:
        return torch.mm(self.weight, table) if self.bias is None else torch.addmm(self.bias, self.weight, table)


class SparseMix(Mix):
    """The product with the edges only, in compressed rows.

    Each target node is a bag of weighted table rows. On CPUs the kernel of `embedding_bag` takes about half the time of
    `torch.mm` with a sparse CSR matrix, and its operands are plain tensors.
    """

    columns: Tensor
    starts: Tensor

    def __init__(self, matrix: Tensor, bias: Bias = None) -> None:
        super().__init__(matrix, bias)
        rows, columns = matrix.nonzero(as_tuple=True)
        counts = torch.bincount(rows, minlength=self.outputs)
        self.register_buffer("columns", columns)
        self.register_buffer("starts", counts.cumsum(0) - counts)
        self.values = _fixed(matrix[rows, columns])

    def forward(self, table: Tensor) -> Tensor:
        sums = F.embedding_bag(self.columns, table, self.starts, mode="sum", per_sample_weights=self.values)
        return sums if self.bias is None else sums.add_(self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, edges={self.values.numel()}"


class TableStage(nn.Module):
    """Nodes and mixes of a stage, for inference: states are written into the table once and read from there.

    A concatenation in front of each target group would copy all earlier states again and again. A batch is run in
    pieces whose table stays in the cache.

    Args:
        nodes: for each source group a module from maps (N, nodes, H, W) to maps.
        mixes: for each target group a `Mix`, or another module from maps to maps.
        rows: how many maps all nodes give together.
        images: how many images are run at once.
    """

    def __init__(self, nodes: nn.ModuleList, mixes: nn.ModuleList, rows: int, images: int) -> None:
        super().__init__()
        self.nodes, self.mixes, self.rows, self.images = nodes, mixes, rows, images

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        parts = [self._run(x[first : first + self.images]) for first in range(0, max(len(x), 1), self.images)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _run(self, x: Tensor) -> Tensor:
        table: Tensor | None = None
        filled = 0
        for group, mix in zip(self.nodes, self.mixes, strict=True):
            state = group(x)
            images, count, *size = state.shape
            if table is None:
                table = state.new_empty(self.rows, state[:, 0].numel())
            table[filled : filled + count].view(count, images, *size).copy_(state.transpose(0, 1))
            filled += count
            known = table[:filled]
            x = _as_maps(mix(known), state) if isinstance(mix, Mix) else mix(_as_maps(known, state))
        return x

    def extra_repr(self) -> str:
        return f"rows={self.rows}, images={self.images}"


def _as_maps(rows: Tensor, like: Tensor) -> Tensor:
    """Rows (nodes, pixels) as maps (N, nodes, H, W) of the size of `like`."""
    images, _, *size = like.shape
    # contiguous, because batch norm and convolutions are slow on transposed memory
    return rows.view(len(rows), images, *size).transpose(0, 1).contiguous()


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().contiguous().clone(), requires_grad=False)
