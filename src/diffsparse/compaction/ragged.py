"""A grouped convolution whose groups have different sizes."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class RaggedConv(nn.Module):
    """Runs each group by itself. `weight` holds the groups one below the other, narrow ones padded with zeros.

    Args:
        conv: the grouped convolution that it stands for; its weights are taken over as they are.
        blocks: outputs and inputs of each group.
    """

    bias: nn.Parameter | None

    def __init__(self, conv: nn.Module, blocks: list[tuple[int, int]]) -> None:
        super().__init__()
        assert isinstance(conv, nn.modules.conv._ConvNd)
        self.blocks = list(blocks)
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.weight = conv.weight
        self.bias = cast(nn.Parameter | None, conv.bias)

    def forward(self, input: Tensor) -> Tensor:
        convolve = _CONVOLVE[self.weight.dim() - 2]
        parts, row, column = [], 0, 0
        for rows, columns in self.blocks:
            bias = None if self.bias is None else self.bias[row : row + rows]
            weight = self.weight[row : row + rows, :columns]
            piece = input.narrow(1, column, columns)
            parts.append(convolve(piece, weight, bias, self.stride, self.padding, self.dilation))
            row, column = row + rows, column + columns
        return torch.cat(parts, 1)

    def extra_repr(self) -> str:
        return f"blocks={self.blocks}, stride={self.stride}, padding={self.padding}"
