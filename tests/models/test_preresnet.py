import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from diffsparse import SparsityError
from diffsparse.models import PreResNet
from diffsparse.models.preactivation import BasicBlock, Bottleneck
from tests.compaction.nets import randomise
from tests.models.figures import normalised, strided


def test_basic_and_bottleneck_depths_are_told_apart() -> None:
    def convolutions(model: nn.Module) -> int:
        return sum(isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1) for m in model.modules())

    assert convolutions(PreResNet(20)) == 19
    assert convolutions(PreResNet(20, bottleneck=True)) == 1 + 6


def test_stages_halve_the_resolution_and_any_input_channels_work() -> None:
    model = PreResNet(8, num_classes=3, width=4, in_channels=1)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert model.stages(model.stem(torch.zeros(2, 1, 8, 8))).shape == (2, 16, 2, 2)


def test_the_stride_is_on_the_3x3_and_on_the_shortcut() -> None:
    x = torch.zeros(1, 3, 8, 8)
    basic = [f"stages.{stage}.0.{layer}" for stage in (1, 2) for layer in ("conv1", "shortcut")]
    bottleneck = [f"stages.{stage}.0.{layer}" for stage in (1, 2) for layer in ("conv2", "shortcut")]
    assert strided(PreResNet(14, width=4), x) == basic
    assert strided(PreResNet(20, width=4, bottleneck=True), x) == bottleneck


def test_shortcuts_are_convolutions_only_where_the_width_changes() -> None:
    def projections(model: nn.Module) -> list[str]:
        return [name for name, m in model.named_modules() if name.endswith("shortcut") and isinstance(m, nn.Conv2d)]

    assert projections(PreResNet(14)) == ["stages.1.0.shortcut", "stages.2.0.shortcut"]
    first = ["stages.0.0.shortcut", "stages.1.0.shortcut", "stages.2.0.shortcut"]
    assert projections(PreResNet(20, bottleneck=True)) == first


@pytest.mark.parametrize(("kind", "convolutions"), [(BasicBlock, 2), (Bottleneck, 3)])
@torch.no_grad()
def test_a_block_normalises_before_each_convolution_and_adds_the_raw_input(
    kind: type[nn.Module], convolutions: int
) -> None:
    block = randomise(kind(6, 4, 2))
    x = torch.randn(2, 6, 8, 8, dtype=torch.float64)
    out = x
    for index in range(1, convolutions + 1):
        conv = getattr(block, f"conv{index}")
        out = normalised(getattr(block, f"bn{index}"), out).clamp(min=0)
        out = F.conv2d(out, conv.weight, stride=conv.stride, padding=conv.padding)
    expected = out + torch.einsum("nchw,oc->nohw", x[:, :, ::2, ::2], block.shortcut.weight[:, :, 0, 0])
    assert torch.allclose(block(x), expected, atol=1e-12)


def test_convolutions_start_with_a_variance_of_two_over_the_fan_out() -> None:
    torch.manual_seed(0)
    model = PreResNet(14, width=32)
    spread = model.stages[2][1].conv1.weight.std().item()
    assert math.isclose(spread, math.sqrt(2 / (9 * 128)), rel_tol=0.02)
    assert model.classifier.weight.abs().max().item() <= 1 / math.sqrt(128)


@pytest.mark.parametrize(("depth", "bottleneck"), [(19, None), (2, None), (-4, None), (14, True), (165, None)])
def test_depth_that_does_not_fit_is_named(depth: int, bottleneck: bool | None) -> None:
    with pytest.raises(SparsityError, match=f"got {depth}"):
        PreResNet(depth, bottleneck=bottleneck)


@pytest.mark.parametrize(
    "wrong", [{"depth": 20.0}, {"width": 0}, {"num_classes": 0}, {"in_channels": -1}, {"width": 1.5}]
)
def test_wrong_sizes_are_named(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SparsityError, match=f"{name} must be a whole number.* got {value}"):
        PreResNet(**({"depth": 8} | wrong))


def test_depths_that_only_bottlenecks_give_have_bottlenecks() -> None:
    kinds = {depth: type(PreResNet(depth, width=1).stages[0][0]).__name__ for depth in (20, 29, 110, 164)}
    assert kinds == {20: "BasicBlock", 29: "Bottleneck", 110: "BasicBlock", 164: "Bottleneck"}
