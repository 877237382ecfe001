import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse import SparsityError
from diffsparse.models import PreActivationResNet, ResNet
from diffsparse.models.postactivation import PostActivationBottleneck
from diffsparse.models.preactivation import Bottleneck
from tests.compaction.nets import randomise
from tests.models.figures import maps, normalised, strided

KINDS = [ResNet, PreActivationResNet]


@pytest.mark.parametrize(("kind", "projection"), [(ResNet, "shortcut.0"), (PreActivationResNet, "shortcut")])
def test_the_stride_is_on_the_3x3_and_on_the_shortcut(kind: type[nn.Module], projection: str) -> None:
    model = kind(5, width=4)
    x = torch.zeros(2, 3, 64, 64)
    later = [f"stages.{stage}.0.{layer}" for stage in (1, 2, 3) for layer in ("conv2", projection)]
    assert strided(model, x) == ["stem.0", *later]
    assert maps(model, x)["stages.0.0.conv1"] == (16, 16)
    assert model.stages(model.stem(x)).shape == (2, 128, 2, 2)
    assert model(x).shape == (2, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_resnet_50(kind: type[nn.Module]) -> None:
    model = kind(width=1)
    block = PostActivationBottleneck if kind is ResNet else Bottleneck
    assert [len(stage) for stage in model.stages] == [3, 4, 6, 3]
    assert all(type(module) is block for stage in model.stages for module in stage)


@torch.no_grad()
def test_a_block_normalises_after_each_convolution_and_activates_after_the_sum() -> None:
    x = torch.randn(2, 8, 9, 9, dtype=torch.float64)
    for planes, stride in ((2, 1), (3, 2)):
        block = randomise(PostActivationBottleneck(8, planes, stride))
        out = normalised(block.bn1, F.conv2d(x, block.conv1.weight)).clamp(min=0)
        out = normalised(block.bn2, F.conv2d(out, block.conv2.weight, stride=stride, padding=1)).clamp(min=0)
        out = normalised(block.bn3, F.conv2d(out, block.conv3.weight))
        plain = isinstance(block.shortcut, nn.Identity)
        assert plain == (stride == 1)
        added = x if plain else normalised(block.shortcut[1], F.conv2d(x, block.shortcut[0].weight, stride=2))
        assert torch.allclose(block(x), (out + added).clamp(min=0), atol=1e-12)


def stem(model: nn.Module, x: Tensor) -> Tensor:
    x = F.conv2d(x, model.stem[0].weight, stride=2, padding=3)
    if isinstance(model, ResNet):
        x = normalised(model.stem[1], x).clamp(min=0)
    # a row and a column of minus infinity in front, so that windows of 3 begin at odd places
    return F.pad(x, (1, 1, 1, 1), value=-torch.inf).unfold(2, 3, 2).unfold(3, 3, 2).amax((4, 5))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_stem_and_classifier(kind: type[nn.Module]) -> None:
    model = randomise(kind(3, blocks=(1, 1), width=2, in_channels=1))
    x = torch.randn(2, 1, 32, 32, dtype=torch.float64)
    assert torch.allclose(model.stem(x), stem(model, x), atol=1e-12)
    last = model.stages(model.stem(x))
    if kind is PreActivationResNet:
        last = normalised(model.bn, last).clamp(min=0)
    expected = last.mean((2, 3)) @ model.classifier.weight.T + model.classifier.bias
    assert torch.allclose(model(x), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_start_with_a_variance_of_two_over_the_fan_out(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind(10, blocks=(1,), width=64)
    assert abs(model.stages[0][0].conv2.weight.std().item() - (2 / (9 * 64)) ** 0.5) < 1e-3
    assert model.classifier.weight.abs().max().item() <= 1 / 16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_classes": 0}, "num_classes .*at least 1, got 0"),
        ({"in_channels": 0}, "in_channels .*at least 1, got 0"),
        ({"width": 0}, "width .*at least 1, got 0"),
        ({"blocks": ()}, r"at least one stage, got \(\)"),
        ({"blocks": (1, 0)}, "blocks of a stage .*at least 1, got 0"),
    ],
)
def test_wrong_sizes_are_named(kind: type[nn.Module], wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        kind(**wrong)
