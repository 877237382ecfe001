"""A tiny task, a tiny net and a plain loop, for all methods alike."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.methods import Method
from diffsparse.models import PreResNet

EXAMPLE = torch.zeros(1, 1, 8, 8)


def images(count: int = 192, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise with one brighter quadrant, which is the label."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    pictures = torch.randn(count, 1, 8, 8, generator=generator)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        picture[0, row : row + 4, column : column + 4] += 1.5
    return pictures, labels


def net(seed: int = 0) -> PreResNet:
    torch.manual_seed(seed)
    return PreResNet(8, num_classes=4, width=4, in_channels=1)


def spread(model: nn.Module, seed: int = 0) -> nn.Module:
    """Batch norms as after training: every scale, shift and statistic another."""
    generator = torch.Generator().manual_seed(seed)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.weight.data = torch.randn(norm.num_features, generator=generator)
        norm.bias.data = torch.randn(norm.num_features, generator=generator)
        norm.running_mean = torch.randn(norm.num_features, generator=generator)
        norm.running_var = 0.5 + torch.rand(norm.num_features, generator=generator)
    return model


def train(model: nn.Module, method: Method, steps: int = 40, rate: float = 0.1) -> nn.Module:
    """The loop a user would write."""
    pictures, labels = images()
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    regulariser = method.regulariser(model, optimizer)
    model.train()
    for _ in range(steps):
        index = torch.randint(len(labels), (32,))
        loss = F.cross_entropy(model(pictures[index]), labels[index])
        term = None if regulariser is None else regulariser()
        optimizer.zero_grad()
        (loss if term is None else loss + term).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    pictures, labels = images(seed=1)
    return float((model.eval()(pictures).argmax(1) == labels).float().mean())


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    now = model.state_dict()
    return now.keys() == before.keys() and all(torch.equal(now[name], tensor) for name, tensor in before.items())


@torch.no_grad()
def agree(first: nn.Module, second: nn.Module) -> bool:
    """Whether both compute the same on images, up to rounding."""
    pictures, _ = images(16, seed=2)
    return torch.allclose(first.eval()(pictures), second.eval()(pictures), rtol=1e-4, atol=1e-5)
