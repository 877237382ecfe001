"""Pieces that several networks are made of."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def unit(
    inputs: int, outputs: int, kernel: int = 3, act: type[nn.Module] | None = nn.ReLU, **settings: Any
) -> nn.Module:
    """Convolution, batch norm and activation; the image keeps its size unless a stride is given."""
    padding = settings.pop("padding", settings.get("dilation", 1) * (kernel // 2))
    layers = [nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False, **settings), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([act()] if act else []))


class Pooled(nn.Module):
    """Features, their mean over the pixels, and a linear layer."""

    def __init__(self, features: nn.Module, width: int, classes: int = 5) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))
        return y
