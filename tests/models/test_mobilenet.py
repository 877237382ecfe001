import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse import SparsityError
from diffsparse.models import MobileNetV1
from tests.compaction.nets import randomise
from tests.models.figures import normalised, strided


def test_widths_of_a_quarter() -> None:
    model = MobileNetV1(multiplier=0.25)
    assert model.stem[0].out_channels == 8
    assert [block.pointwise.out_channels for block in model.blocks] == [16, 32, 32, 64, 64, *[128] * 6, 256, 256]
    assert model.classifier.in_features == 256


def test_widths_are_rounded_down() -> None:
    model = MobileNetV1(multiplier=0.3)
    assert model.stem[0].out_channels == 9
    assert [block.pointwise.out_channels for block in model.blocks][:3] == [19, 38, 38]


@pytest.mark.parametrize(("imagenet", "first"), [(False, []), (True, ["stem.0"])])
def test_four_blocks_have_a_stride_and_the_stem_for_large_images(imagenet: bool, first: list[str]) -> None:
    model = MobileNetV1(7, multiplier=0.125, imagenet=imagenet)
    x = torch.zeros(1, 3, 64, 64)
    assert strided(model, x) == first + [f"blocks.{index}.depthwise" for index in (1, 3, 5, 11)]
    assert model.blocks(model.stem(x)).shape[2:] == ((2, 2) if imagenet else (4, 4))
    assert model(x).shape == (1, 7)


def slow(model: MobileNetV1, x: Tensor) -> Tensor:
    """All layers as one chain of convolution, batch norm and ReLU, the depthwise ones channel by channel."""
    layers = [(model.stem[0], model.stem[1])]
    for block in model.blocks:
        layers += [(block.depthwise, block.bn1), (block.pointwise, block.bn2)]
    for conv, norm in layers:
        weight, options = conv.weight, {"stride": conv.stride, "padding": conv.padding}
        if weight.shape[1] == 1:
            x = torch.cat([F.conv2d(x[:, c : c + 1], weight[c : c + 1], **options) for c in range(len(weight))], 1)
        else:
            x = F.conv2d(x, weight, **options)
        x = normalised(norm, x).clamp(min=0)
    return x.mean((2, 3)) @ model.classifier.weight.T + model.classifier.bias


@torch.no_grad()
def test_forward_pass_layer_by_layer() -> None:
    torch.manual_seed(0)
    model = randomise(MobileNetV1(4, multiplier=0.125, in_channels=2))
    x = torch.randn(2, 2, 16, 16, dtype=torch.float64)
    assert torch.allclose(model(x), slow(model, x), atol=1e-10)


def test_every_convolution_but_the_stem_is_depthwise_or_1x1() -> None:
    model = MobileNetV1(multiplier=0.25)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 1 + 2 * 13
    assert all(conv.groups == conv.in_channels for conv in convolutions[1::2])
    assert all(conv.kernel_size == (1, 1) and conv.groups == 1 for conv in convolutions[2::2])


@pytest.mark.parametrize(
    "wrong",
    [{"num_classes": 0}, {"in_channels": 0}, {"multiplier": 0.03}, {"multiplier": 0}, {"multiplier": float("nan")}],
)
def test_wrong_sizes_are_named(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SparsityError, match=f"{name} must be .* got {value}"):
        MobileNetV1(**wrong)
