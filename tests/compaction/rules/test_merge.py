"""Constant inputs of a convolution with padding are merged into one."""

import pytest
import torch
from torch import nn

import diffsparse as ds
from tests.compaction.nets import randomise, same

KINDS = {
    "padding": lambda: nn.Conv2d(8, 6, 3, padding=1),
    "stride": lambda: nn.Conv2d(8, 6, 5, 2, 2, bias=False),
    "dilation": lambda: nn.Conv2d(8, 6, 3, padding=2, dilation=2),
    "groups": lambda: nn.Conv2d(8, 6, 3, padding=1, groups=2),
    "transposed": lambda: nn.ConvTranspose2d(8, 6, 3, 2, 1),
    "transposed groups": lambda: nn.ConvTranspose2d(8, 6, 3, 2, 1, groups=2),
}


def net(layer: nn.Module, constant: list[int]) -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), layer, nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1)
    )
    randomise(model)
    model[1].weight.data[constant] = 0.0
    model[1].bias.data[constant] = torch.linspace(-2, 3, len(constant), dtype=torch.float64)
    return model


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("constant", [[1, 5], [0, 1, 2, 6], [4, 5, 6, 7]])
@pytest.mark.parametrize("options", [{}, {"round_to": 4}, {"fold": True}], ids=["plain", "rounded", "folded"])
def test_it_is_exact_at_every_size(make, constant: list[int], options: dict[str, int]) -> None:
    model = net(make(), constant)
    small = ds.compact(model, torch.randn(2, 3, 9, 9, dtype=torch.float64), **options)
    assert not small.fallbacks
    for size in (1, 2, 5, 9):
        assert same(model, small.model, torch.randn(3, 3, size, size + 1, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["padding", "stride", "dilation", "transposed"])
def test_one_constant_stays_the_largest(kind: str) -> None:
    model = net(KINDS[kind](), [0, 1, 2, 6])
    small = ds.compact(model, torch.randn(2, 3, 9, 9, dtype=torch.float64))
    kept = small.plan.tensors["2.weight"].dims[1 if kind != "transposed" else 0]
    assert kept == [3, 4, 5, 6, 7]
    assert small.model[0].out_channels == 4


def test_a_single_constant_keeps_its_weights() -> None:
    model = net(nn.Conv2d(8, 6, 3, padding=1), [3])
    small = ds.compact(model, torch.randn(2, 3, 9, 9, dtype=torch.float64)).model
    assert torch.equal(small[2].weight, model[2].weight)


class Upsampled(nn.Module):
    """A transposed convolution of constants, beside one of the input, in front of a convolution with padding."""

    def __init__(self, up: nn.Module) -> None:
        super().__init__()
        self.norm, self.up, self.skip = nn.BatchNorm2d(3), up, nn.ConvTranspose2d(3, 4, 3, 2)
        self.join = nn.Conv2d(20, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.join(torch.cat([self.up(self.norm(x)), self.skip(x)], 1))
        return y


@pytest.mark.parametrize(
    ("up", "patterns"),
    [
        (lambda: nn.ConvTranspose2d(3, 16, 3, 2), 10),
        (lambda: nn.ConvTranspose2d(3, 16, 3, 2, bias=False), 9),
        (lambda: nn.ConvTranspose2d(3, 16, (3, 1), 2), 4),
    ],
    ids=["bias", "no bias", "thin"],
)
def test_patterns_behind_a_transposed_convolution(up, patterns: int) -> None:
    model = Upsampled(up())
    if patterns == 4:
        # two columns more, so that both parts are as wide
        model.up = nn.Sequential(model.up, nn.ZeroPad2d((0, 2, 0, 0)))
    randomise(model)
    model.norm.weight.data.zero_()
    small = ds.compact(model, torch.randn(2, 3, 6, 6, dtype=torch.float64))
    assert small.model.join.in_channels == patterns + 4
    for size in (2, 3, 8):
        assert same(model, small.model, torch.randn(3, 3, size, size + 1, dtype=torch.float64))
