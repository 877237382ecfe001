"""Small networks with known zeros, before and after compaction."""

from typing import Any

import torch
from torch import Tensor, nn

import diffsparse as ds


def small_net() -> nn.Sequential:
    """A convolutional net of which 3 of 4 and 1 of 6 channels are dead."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(6 * 16, 2)),
    )
    net[1].weight.data[1:] = 0
    net[4].weight.data[2] = 0
    return net.eval()


IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def compacted() -> ds.Compacted[Any]:
    return ds.compact(small_net(), IMAGES)


def attention() -> tuple[nn.Module, Tensor]:
    """Two gated transformer blocks: 1 of 4 heads and 8 of 16 neurons of the first are closed."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True, dropout=0.0)
    model, x = nn.TransformerEncoder(block, 2, enable_nested_tensor=False), torch.randn(2, 5, 16)
    gated = ds.sparsify(model.eval(), x)
    with torch.no_grad():
        for name, part in gated.named_modules():
            if type(part).__name__ == "GatePart" and "layers.0" in name:
                values = part.gate().clone()
                values[part.start : part.start + (1 if part.kind == "heads" else 8)] = 0
                part.gate.set_values(values)
    return gated, x
