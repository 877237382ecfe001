"""A graph network that forecasts the next speed on every road from the past few."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.nn import GraphConvolution, SparseAdjacency
from diffsparse.nn.graph import sparse_if_faster


class TrafficGCN(nn.Module):
    r"""The paper's traffic model: an input block, graph convolutions over one learned graph, an output block.

    The input and output blocks are three fully connected layers each, shared by all nodes. Each graph convolution
    computes :math:`H^{l+1} = \mathrm{relu}(A H^l W^l + b^l)` with the same A; the output block reads the outputs of all
    of them. `mean` and `std` of the training speeds standardise the input.

    Args:
        nodes: number of roads.
        history: number of past speeds in the input.
        width: number of features per node in every layer.
        blocks: number of graph convolutions.
        adjacency: the graph; by default `SparseAdjacency(nodes)`.

    Shape: (N, history, nodes) to (N, nodes), both in the units of the data.

    Example:
        >>> model = TrafficGCN(6, mean=55.0, std=12.0)
        >>> model(torch.rand(4, 8, 6) * 80).shape
        torch.Size([4, 6])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        nodes: int,
        *,
        history: int = 8,
        width: int = 64,
        blocks: int = 5,
        adjacency: SparseAdjacency | None = None,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        require_whole("width", width, low=1)
        require_whole("blocks", blocks, low=1)
        self.history, self.nodes = require_whole("history", history, low=1), nodes
        self.adjacency = SparseAdjacency(nodes) if adjacency is None else adjacency
        if not isinstance(self.adjacency, SparseAdjacency) or self.adjacency.nodes != nodes:
            raise SparsityError(f"the adjacency must be a SparseAdjacency of {nodes} nodes, got {adjacency!r}")
        self.input_block = _three_layers(history, width, width)
        self.blocks = nn.ModuleList(GraphConvolution(width, width) for _ in range(blocks))
        self.output_block = _three_layers(blocks * width, width, 1)
        self.register_buffer("mean", torch.tensor(require_number("mean", mean)))
        self.register_buffer("std", torch.tensor(require_number("std", std, above=0)))

    def forward(self, speeds: Tensor) -> Tensor:
        if speeds.dim() != 3 or tuple(speeds.shape[1:]) != (self.history, self.nodes):
            expected = f"(N, {self.history}, {self.nodes})"
            raise SparsityError(f"TrafficGCN expects speeds of shape {expected}, got {tuple(speeds.shape)}")
        a = self.adjacency() if self.training else sparse_if_faster(self.adjacency())
        h = F.relu(self.input_block(((speeds - self.mean) / self.std).mT))
        outputs: list[Tensor] = []
        for block in self.blocks:
            h = F.relu(block(h, a))
            outputs.append(h)
        forecast: Tensor = self.output_block(torch.cat(outputs, -1)).squeeze(-1)
        return forecast * self.std + self.mean


def _three_layers(in_features: int, width: int, out_features: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out_features)
    )
