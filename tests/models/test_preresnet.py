import pytest
import torch
from torch import nn

from diffsparse import SparsityError
from diffsparse.models import PreResNet


def test_resnet_164_has_the_papers_counts() -> None:
    model = PreResNet(164)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert sum(p.numel() for p in model.parameters()) == 1_703_258
    assert len(norms) == 163
    assert sum(norm.num_features for norm in norms) == 12_112


def test_basic_and_bottleneck_depths_are_told_apart() -> None:
    def convolutions(model: nn.Module) -> int:
        return sum(isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1) for m in model.modules())

    assert convolutions(PreResNet(20)) == 19
    assert convolutions(PreResNet(20, bottleneck=True)) == 1 + 6


def test_stages_halve_the_resolution_and_any_input_channels_work() -> None:
    model = PreResNet(8, num_classes=3, width=4, in_channels=1)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert model.stages(model.stem(torch.zeros(2, 1, 8, 8))).shape == (2, 16, 2, 2)


@pytest.mark.parametrize(("depth", "bottleneck"), [(19, None), (2, None), (14, True), (165, None)])
def test_depth_that_does_not_fit_is_named(depth: int, bottleneck: bool | None) -> None:
    with pytest.raises(SparsityError, match=f"got {depth}"):
        PreResNet(depth, bottleneck=bottleneck)
