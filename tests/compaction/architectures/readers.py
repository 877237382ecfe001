"""Networks whose code looks at the modules that it calls."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.architectures.architecture import written
from tests.compaction.architectures.layers import Pooled, unit


class Concat(nn.Module):
    """Joins channels."""

    def forward(self, x: list[Tensor]) -> Tensor:
        return torch.cat(x, 1)


class Csp(nn.Module):
    """Two halves of a convolution's channels; one goes through residual blocks, all are joined."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.c = outputs // 2
        self.cv1, self.cv2 = unit(inputs, outputs, 1, nn.SiLU), unit(3 * self.c, outputs, 1, nn.SiLU)
        self.m = nn.Sequential(unit(self.c, self.c, 3, nn.SiLU), unit(self.c, self.c, 3, nn.SiLU))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).split((self.c, self.c), 1))
        parts.append(parts[-1] + self.m(parts[-1]))
        y: Tensor = self.cv2(torch.cat(parts, 1))
        return y


class Yolo(nn.Module):
    """A list of modules; each says by `f` where its input comes from and by `i` which one it is."""

    def __init__(self) -> None:
        super().__init__()
        plan: list[tuple[Any, nn.Module]] = [
            (-1, unit(3, 16, 3, nn.SiLU, stride=2)),
            (-1, unit(16, 32, 3, nn.SiLU, stride=2)),
            (-1, Csp(32, 32)),
            (-1, unit(32, 48, 3, nn.SiLU, stride=2)),
            (-1, Csp(48, 48)),
            (-1, nn.Upsample(scale_factor=2)),
            ([-1, 2], Concat()),
            (-1, Csp(80, 32)),
            (-1, nn.Conv2d(32, 8, 1)),
        ]
        self.model = nn.Sequential(*(module for _, module in plan))
        for index, (source, module) in enumerate(plan):
            module.f, module.i = source, index  # type: ignore[assignment]
        self.save = [2]

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor | None] = []
        for m in self.model:
            if m.f != -1:
                x = [x if j == -1 else seen[j] for j in m.f]  # type: ignore[assignment]
            x = m(x)
            seen.append(x if m.i in self.save else None)
        return x


written(
    "YOLO-style loop", size=(32, 32), others=((1, (32, 32)), (3, (40, 48)), (2, (64, 32)), (1, (16, 24))), quick=True
)(Yolo)


class SamePadded(nn.Module):
    """Pads by what the convolution's stride and kernel say, as TensorFlow does, then calls it."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride, groups=groups, bias=False)
        self.normalization = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        conv, sides = self.convolution, []
        for size, stride, kernel in zip(x.shape[2:], conv.stride, conv.kernel_size, strict=True):
            missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            sides = [missing // 2, missing - missing // 2, *sides]
        y: Tensor = self.normalization(conv(F.pad(x, sides).to(conv.weight.dtype)))
        return F.relu6(y)


@written("Reads stride and dtype of its layers", quick=True)
def _padded() -> nn.Module:
    layers = [SamePadded(3, 16, 2), SamePadded(16, 16, 1, groups=16), unit(16, 32, 1), SamePadded(32, 32, 2, groups=32)]
    return Pooled(nn.Sequential(*layers, unit(32, 48, 1)), 48)


class Extractor(nn.Module):
    """Collects what hooks see inside another network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(unit(3, 24), unit(24, 32, stride=2), unit(32, 32))
        self.seen: dict[int, Tensor] = {}
        for index in (1, 2):
            self.net[index].register_forward_hook(lambda m, i, o, index=index: self.seen.update({index: o}))
        self.head = nn.Conv2d(64, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.net(x)
        y: Tensor = self.head(torch.cat([self.seen[1], self.seen[2]], 1))
        self.seen.clear()
        return y


written("Features taken by hooks", quick=True)(Extractor)
