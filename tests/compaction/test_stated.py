"""Code that computes with the widths that layers state: what the number counts stays, the rest becomes smaller."""

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.stated import stated_widths
from tests.compaction.nets import randomise


class Scaled(nn.Module):
    """Multiplies by a width that a layer of it states."""

    def __init__(self, layer: str, attribute: str) -> None:
        super().__init__()
        self.c1, self.n1, self.c2 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)
        self.n2, self.c3 = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
        self.layer, self.attribute = layer, attribute

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.n1(self.c1(x)))
        y: Tensor = self.c3(torch.relu(self.n2(self.c2(x) * self.factor())))
        return y

    def factor(self) -> float:
        return getattr(getattr(self, self.layer), self.attribute) / 3


@pytest.mark.parametrize(
    ("layer", "attribute", "widths"),
    [
        ("c2", "in_channels", [4, 8, 4, 4]),
        ("c2", "out_channels", [4, 4, 8, 4]),
        ("c1", "out_channels", [8, 4, 4, 4]),
        ("n1", "num_features", [8, 4, 4, 4]),
        ("c3", "in_channels", [4, 4, 4, 8]),
    ],
)
def test_only_what_the_number_counts_stays(layer: str, attribute: str, widths: list[int]) -> None:
    model = randomise(Scaled(layer, attribute)).eval()
    for norm in (model.n1, model.n2):
        norm.weight.data[:4], norm.bias.data[:2], norm.bias.data[2:4] = 0, 0, 0.5
    small = ds.compact(model, torch.randn(2, 3, 12, 12, dtype=torch.float64))
    made = small.model
    assert [made.c1.out_channels, made.c2.in_channels, made.c2.out_channels, made.c3.in_channels] == widths
    assert getattr(getattr(made, layer), attribute) == 8
    assert any("computes with the widths" in entry.reason for entry in small.kept)
    x = torch.randn(3, 3, 9, 10, dtype=torch.float64)
    assert torch.allclose(made(x), model(x), rtol=0, atol=1e-10)


def test_reads_of_torch_itself_do_not_count() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, affine=True), Scaled("c2", "in_channels"))
    model[2].c1 = nn.Conv2d(4, 8, 3)
    kinds = [type(module) for module in model.modules()]
    found = stated_widths(model.eval(), lambda net: net(torch.randn(1, 3, 9, 9)))
    assert found == {"2.c2": {"in_channels"}}
    assert [type(module) for module in model.modules()] == kinds


def test_a_model_that_does_not_run_states_nothing() -> None:
    assert stated_widths(Scaled("c2", "in_channels"), lambda net: net(torch.randn(1, 2, 9, 9))) == {}
