"""Small gated networks with different couplings of channels, and a loop to train them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.models import PreResNet


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.BatchNorm1d(16),
                         nn.ReLU(), nn.Linear(16, 3))  # fmt: skip


class Separable(nn.Module):
    """A depthwise convolution between two gates: a channel lives only if both do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(3, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.depthwise, self.bn2 = nn.Conv2d(12, 12, 3, 1, 1, groups=12, bias=False), nn.BatchNorm2d(12)
        self.head = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.stem(x)))
        x = F.relu(self.bn2(self.depthwise(x)))
        return self.head(x).mean((2, 3))


class PostActivation(nn.Module):
    """A residual stream: its channels live as long as one of two gates lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.conv, self.bn2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.last, self.bn3 = nn.Conv2d(8, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.stem(x)))
        x = F.relu(x + self.bn2(self.conv(x)))
        return self.head(F.relu(self.bn3(self.last(x))).mean((2, 3)))


def resnet() -> nn.Module:
    return PreResNet(8, 3, width=4)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (chain, (8,)),
    "separable": (Separable, (3, 6, 6)),
    "post-activation": (PostActivation, (3, 6, 6)),
    "pre-activation": (resnet, (3, 8, 8)),
}


def gated(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A gated network with gates at random values, and a batch of input."""
    torch.manual_seed(seed)
    make, shape = NETWORKS[name]
    model = ds.sparsify(make(), start=0.5)
    for _, gate in ds.gates.named_gates(model):
        gate.alpha.data.mul_(torch.rand_like(gate.alpha) + 0.5)
    return model, torch.randn(16, *shape)


def train(
    model: nn.Module, x: Tensor, budget: Any, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0
) -> list[float]:
    """The three lines in a loop; returns the losses."""
    losses = []
    for step in range(steps):
        y = torch.randint(0, 3, (len(x),), generator=torch.Generator().manual_seed(seed + step))
        loss = F.cross_entropy(model(x), y) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)
        losses.append(loss.item())
    return losses
