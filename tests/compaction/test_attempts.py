"""Plans from bold to careful: in the end the model stays as it is, and `kept` says so."""

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds


class CountsItsParameters(nn.Module):
    """Divides by the number of its parameters, whatever that is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.conv(x)) / sum(p.numel() for p in self.parameters()))
        return y


def half_dead() -> CountsItsParameters:
    torch.manual_seed(0)
    model = CountsItsParameters().double().eval()
    model.conv.weight.data[:4] = 0
    model.conv.bias.data[:4] = 0
    return model


def test_a_model_that_no_plan_fits_stays_as_it_is() -> None:
    model, x = half_dead(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    small = ds.compact(model, x)
    assert torch.equal(small.model(x), model(x))
    assert small.after.params == small.before.params
    assert small.kept[0].reason.startswith("every smaller model gives other outputs")
    assert "it could be smaller" in str(small.plan)
    assert small.fallbacks


def test_strict_refuses_it() -> None:
    with pytest.raises(ds.SparsityError, match="strict"):
        ds.compact(half_dead(), torch.randn(2, 3, 8, 8, dtype=torch.float64), strict=True)
