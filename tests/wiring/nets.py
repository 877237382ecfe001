"""Small wired networks with edges as given, and batch norms that shift."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from diffsparse.wiring import Proximal, WiredStage
from diffsparse.wiring.rules import PlainEdges


class Tiny(nn.Module):
    """A stem, wired stages with plain edges, batch norm, pooling and a classifier."""

    def __init__(self, *layout: tuple[int, int, int, int], in_channels: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, layout[0][0], 3, padding=1, bias=False)
        self.stages = nn.Sequential(*(WiredStage(*numbers, edges=Proximal(strength=0.0)) for numbers in layout))
        self.norm = nn.BatchNorm2d(layout[-1][1])
        self.classifier = nn.Linear(layout[-1][1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.relu(self.norm(self.stages(self.stem(x)))).mean((2, 3)))


def shifted(net: nn.Module, seed: int = 0) -> nn.Module:
    """`net` in eval mode, with statistics, scales and shifts as after training."""
    generator = torch.Generator().manual_seed(seed)
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        for tensor, low, high in (
            (norm.weight, 0.5, 1.5),
            (norm.bias, -0.2, 0.8),
            (norm.running_mean, -0.3, 0.3),
            (norm.running_var, 0.5, 1.5),
        ):
            tensor.data.copy_(low + (high - low) * torch.rand(tensor.shape, generator=generator))
    return net.eval()


def matrices(net: nn.Module) -> list[list[Tensor]]:
    """The edge weights of every stage, to write to."""
    edges = [stage.edges for stage in net.modules() if isinstance(stage, WiredStage)]
    assert all(isinstance(e, PlainEdges) for e in edges)
    return [[weight.data for weight in e.weights()] for e in edges]


def tiny(edit: Callable[[list[list[Tensor]]], None], *layout: tuple[int, int, int, int], seed: int = 0) -> nn.Module:
    """A tiny network whose edges `edit` has written to."""
    torch.manual_seed(seed)
    net = shifted(Tiny(*layout))
    edit(matrices(net))
    return net


def drop(rate: float, seed: int = 0) -> Callable[[list[list[Tensor]]], None]:
    """Drop edges at random."""
    generator = torch.Generator().manual_seed(seed)

    def edit(stages: list[list[Tensor]]) -> None:
        for weight in (w for stage in stages for w in stage):
            weight.mul_(torch.rand(weight.shape, generator=generator) >= rate)

    return edit
