import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse import SparsityError
from diffsparse.models import DenseNet
from tests.compaction.nets import randomise
from tests.models.figures import maps, normalised


def test_widths_of_depth_40() -> None:
    model = DenseNet(40)
    norms = {name: m.num_features for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert [norms[f"stages.{stage}.0.bn"] for stage in (0, 2, 4)] == [24, 168, 312]
    assert [norms[f"stages.{stage}.11.bn"] for stage in (0, 2, 4)] == [156, 300, 444]
    assert (norms["stages.1.bn"], norms["stages.3.bn"], norms["bn"]) == (168, 312, 456)
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 1 + 36 + 2


def test_all_batch_norms_consist_of_whole_groups_of_the_growth() -> None:
    model = ds.sparsify(DenseNet(40), start=0.5)
    hidden = ds.sparsity(model, ds.GroupL21(size=12), only=["stages.[024]"])
    everything = ds.sparsity(model, ds.GroupL21(size=12))
    assert (hidden.groups.total, everything.groups.total) == (702, 780)
    assert (hidden.channels.total, everything.channels.total) == (8_424, 9_360)


def test_transitions_convolve_before_they_pool() -> None:
    seen = maps(DenseNet(7, growth=2), torch.zeros(1, 3, 16, 16))
    heights = {"stem": 16, "stages.0.0.conv": 16, "stages.1.conv": 16, "stages.2.0.conv": 8}
    heights |= {"stages.3.conv": 8, "stages.4.0.conv": 4}
    assert seen == {name: (height, height) for name, height in heights.items()}


def slow(model: DenseNet, x: Tensor) -> Tensor:
    """The forward pass with every layer's output in a list of its own."""
    x = F.conv2d(x, model.stem.weight, padding=1)
    for stage in model.stages:
        if isinstance(stage, nn.Sequential):
            parts = [x]
            for layer in stage:
                inputs = normalised(layer.bn, torch.cat(parts, 1)).clamp(min=0)
                parts.append(F.conv2d(inputs, layer.conv.weight, padding=1))
            x = torch.cat(parts, 1)
        else:
            x = torch.einsum("nchw,oc->nohw", normalised(stage.bn, x).clamp(min=0), stage.conv.weight[:, :, 0, 0])
            x = sum(x[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1)) / 4
    x = normalised(model.bn, x).clamp(min=0).mean((2, 3))
    return x @ model.classifier.weight.T + model.classifier.bias


@torch.no_grad()
def test_new_channels_come_after_the_old_ones() -> None:
    model = randomise(DenseNet(13, num_classes=4, growth=3, in_channels=2))
    x = torch.randn(2, 2, 8, 8, dtype=torch.float64)
    assert model(x).shape == (2, 4)
    assert torch.allclose(model(x), slow(model, x), atol=1e-10)


@pytest.mark.parametrize("depth", [4, 6, 41, -5])
def test_depth_that_does_not_fit_is_named(depth: int) -> None:
    with pytest.raises(SparsityError, match=rf"3n \+ 4.* got {depth}"):
        DenseNet(depth)


@pytest.mark.parametrize("wrong", [{"depth": "40"}, {"growth": 0}, {"num_classes": 0}, {"in_channels": 0}])
def test_wrong_sizes_are_named(wrong: dict[str, int]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SparsityError, match=f"{name} must be a whole number.* got {value!r}"):
        DenseNet(**({"depth": 7} | wrong))
