"""Networks that move, sample and pool in less usual ways."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.architectures.architecture import written
from tests.compaction.architectures.layers import Pooled, unit


def _dense(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU())


class Transform(nn.Module):
    """A matrix for the features, from the largest of all points."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.points = width, nn.Sequential(_dense(width, 24), _dense(24, 48))
        self.rows = nn.Sequential(nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, width * width))

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.max(self.points(x), 2, keepdim=True)[0].view(-1, 48)
        flat = self.rows(pooled) + torch.eye(self.width, dtype=x.dtype).flatten().repeat(x.shape[0], 1)
        return torch.bmm(x.transpose(2, 1), flat.view(-1, self.width, self.width)).transpose(2, 1)


class PointNet(nn.Module):
    """Points, transformed twice, pooled by their largest; local and global features for each point."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.low, self.second = Transform(3), _dense(3, 16), Transform(16)
        self.high = nn.Sequential(_dense(16, 32), _dense(32, 64))
        self.head = nn.Sequential(_dense(80, 32), nn.Conv1d(32, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        low = self.second(self.low(self.first(x)))
        pooled = torch.max(self.high(low), 2, keepdim=True)[0]
        y: Tensor = self.head(torch.cat([low, pooled.repeat(1, 1, x.shape[2])], 1))
        return y


written("PointNet", size=(40,), quick=True)(PointNet)


class SegNet(nn.Module):
    """Pooling remembers where the largest were; unpooling puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([unit(3, 24), unit(24, 32)])
        self.up = nn.ModuleList([nn.Sequential(unit(32, 32), unit(32, 24)), unit(24, 16)])
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        places, sizes = [], []
        for level in self.down:
            x = level(x)
            sizes.append(x.shape[2:])
            x, index = F.max_pool2d(x, 2, return_indices=True)
            places.append(index)
        for level in self.up:
            x = level(F.max_unpool2d(x, places.pop(), 2, output_size=sizes.pop()))
        y: Tensor = self.head(x)
        return y


written("SegNet (max_unpool)", quick=True, whole=False)(SegNet)


class Spatial(nn.Module):
    """A spatial transformer: the image, then features, are sampled on a grid that a branch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(unit(3, 16, stride=2), unit(16, 16, stride=2), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.angle, self.features = nn.Linear(64, 6), nn.Sequential(unit(3, 24), unit(24, 24))
        self.after = nn.Sequential(unit(24, 24), nn.Conv2d(24, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        theta = 0.1 * self.angle(self.where(x)).view(-1, 2, 3) + torch.eye(2, 3, dtype=x.dtype)
        features = self.features(x)
        grid = F.affine_grid(theta, [len(x), 1, *features.shape[2:]], align_corners=False)
        y: Tensor = self.after(F.grid_sample(features, grid, align_corners=False))
        return y


written("Spatial transformer (grid_sample)", quick=True)(Spatial)


class Film(nn.Module):
    """A residual network of three-dimensional convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv3d(2, 16, 3, padding=1), nn.BatchNorm3d(16)
        self.one, self.norm1 = nn.Conv3d(16, 16, 3, padding=1), nn.BatchNorm3d(16)
        self.two, self.norm2 = nn.Conv3d(16, 16, (1, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.norm(self.stem(x))), 2)
        x = F.relu(x + self.norm2(self.two(F.relu(self.norm1(self.one(x))))))
        y: Tensor = self.head(F.adaptive_avg_pool3d(x, 1).flatten(1))
        return y


_FILMS = ((1, (6, 8, 8)), (3, (8, 10, 9)), (2, (4, 8, 12)), (1, (9, 9, 9)))
written("3-d convolutions", channels=2, size=(6, 8, 8), others=_FILMS, quick=True)(Film)


def _noise(generator: torch.Generator, batch: int, size: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, size, generator=generator, dtype=torch.float64),)


class Generator(nn.Module):
    """From noise to an image by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.norm = nn.Linear(16, 48 * 16), nn.BatchNorm2d(48)
        widths = (48, 32, 16)
        self.up = nn.Sequential()
        for inputs, outputs in pairwise(widths):
            self.up.extend(
                [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            )
        self.up.extend([nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()])

    def forward(self, z: Tensor) -> Tensor:
        y: Tensor = self.up(F.relu(self.norm(self.start(z).view(-1, 48, 4, 4))))
        return y


written("GAN generator", size=16, draw=_noise, others=((1, 16), (3, 16), (5, 16)), quick=True)(Generator)


class Siamese(nn.Module):
    """One tower for two images, the second shifted; differences and products of both."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(unit(3, 24, stride=2), unit(24, 32), unit(32, 32, 3, None))
        self.head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.tower(x), self.tower(y + 0.5)
        both = torch.hstack([(a - b).abs().mean((2, 3)), (a * b).mean((2, 3))])
        z: Tensor = self.head(both)
        return z


def _pair(generator: torch.Generator, batch: int, size: tuple[int, int]) -> tuple[Tensor, ...]:
    x, y = torch.randn(2, batch, 3, *size, generator=generator, dtype=torch.float64)
    return x, y


written("Siamese with shifts", draw=_pair, quick=True)(Siamese)


class SuperResolution(nn.Module):
    """Residual blocks, pixel shuffle, and the resized image added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = unit(3, 24)
        self.body = nn.ModuleList([nn.Sequential(unit(24, 24, 3, nn.PReLU), unit(24, 24, 3, None)) for _ in range(2)])
        self.up = nn.Sequential(
            nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.PixelShuffle(2), nn.Conv2d(12, 3, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        for block in self.body:
            y = y + block(y)
        return self.up(y) + F.interpolate(x, scale_factor=2, mode="bicubic")


written("Super-resolution (pixel shuffle)")(SuperResolution)


class Unfolded(nn.Module):
    """A convolution written as unfold and a matrix product, and patches joined by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.weight = unit(3, 16), nn.Parameter(torch.randn(24, 16 * 9) / 12)
        self.norm, self.mix = nn.BatchNorm2d(24), nn.Parameter(torch.randn(24, 20) / 5)
        self.after, self.head = nn.BatchNorm2d(20), nn.Conv2d(20, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = (self.weight @ F.unfold(x, 3, padding=1)).view(len(x), -1, *x.shape[2:])
        y = torch.einsum("nchw,cd->ndhw", F.relu(self.norm(y)), self.mix)
        z: Tensor = self.head(F.relu(self.after(y)))
        return z


written("Unfold and einsum", quick=True)(Unfolded)


class ChannelPadded(nn.Module):
    """A residual block whose shortcut is padded with zero channels, as in the first ResNets for CIFAR."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.extra = outputs - inputs
        self.body = nn.Sequential(unit(inputs, outputs, stride=2), unit(outputs, outputs, 3, None))

    def forward(self, x: Tensor) -> Tensor:
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return F.relu(short + self.body(x))


@written("ResNet with padded shortcuts", quick=True)
def _padded() -> nn.Module:
    return Pooled(nn.Sequential(unit(3, 16), ChannelPadded(16, 32), ChannelPadded(32, 48)), 48)
