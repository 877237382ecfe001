"""MobileNetV1 with learned wiring: every stage is a graph of channels (Discovering Neural Wirings)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.wiring import EdgeRule, WiredStage

# Input nodes, nodes per other group, stride and number of groups of each stage.
STAGES = ((32, 64, 1, 1), (64, 128, 2, 2), (128, 256, 2, 2), (256, 512, 2, 6), (512, 1024, 2, 2))


class WiredMobileNet(nn.Module):
    """Stem, five wired stages, batch norm, global pooling and a classifier.

    Args:
        width: factor on the numbers of nodes, which are rounded down.
        imagenet: use a stem of stride 2, for images of 224 pixels.
        small: use the first three stages only, for images of 8 pixels; the others would shrink them to one.
        edges: the rule that chooses the edges, by default `Differentiable()`.

    Shape: (N, in_channels, H, W) to (N, num_classes).

    Example:
        >>> net = WiredMobileNet(width=0.125, in_channels=1, small=True)
        >>> net(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        in_channels: int = 3,
        width: float = 1.0,
        imagenet: bool = False,
        small: bool = False,
        edges: EdgeRule | None = None,
    ) -> None:
        super().__init__()
        require_whole("num_classes", num_classes, low=1)
        require_whole("in_channels", in_channels, low=1)
        require_number("width", width, above=0)
        if imagenet and small:
            raise SparsityError("give imagenet=True for images of 224 pixels or small=True for 8 pixels, not both")
        if int(width * STAGES[0][0]) < 1:
            raise SparsityError(f"width={width:g} leaves no node in the first stage of {STAGES[0][0]}")
        layout = [
            (int(width * inputs), int(width * outputs), stride, groups)
            for inputs, outputs, stride, groups in (STAGES[:3] if small else STAGES)
        ]
        self.stem = nn.Conv2d(in_channels, layout[0][0], 3, 2 if imagenet else 1, 1, bias=False)
        self.stages = nn.Sequential(*(WiredStage(*numbers, edges=edges) for numbers in layout))
        self.norm = nn.BatchNorm2d(layout[-1][1])
        self.classifier = nn.Linear(layout[-1][1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stages(self.stem(x))))
        logits: Tensor = self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return logits
