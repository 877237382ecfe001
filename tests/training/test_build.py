import pytest
import torch
from torch import nn

from diffsparse import SparsityError
from diffsparse.methods import Sparsifying, choose_method
from diffsparse.models import PreResNet
from diffsparse.training.build import build_model
from tests.training.examples import NET, Net, small_data


class Pair(nn.Module):
    """Gives two things."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def test_a_network_of_the_package_is_told_classes_and_channels() -> None:
    model = build_model("preresnet8-0.25", "{}", small_data(), 0)
    assert isinstance(model, PreResNet)
    assert (model.stem.in_channels, model.classifier.out_features) == (1, 4)


def test_a_class_of_the_users_gets_its_arguments() -> None:
    model = build_model(NET, '{"width": 3, "dropout": 0.0}', small_data(), 0)
    assert isinstance(model, Net)
    assert model.head.in_features == 3


def test_weights_follow_from_the_seed_alone() -> None:
    first = build_model(NET, "{}", small_data(), 7)
    torch.rand(3)
    second, third = build_model(NET, "{}", small_data(), 7), build_model(NET, "{}", small_data(), 8)
    assert torch.equal(first.conv1.weight, second.conv1.weight)
    assert not torch.equal(first.conv1.weight, third.conv1.weight)
    assert first.training


def test_graphs_of_roads_need_roads() -> None:
    with pytest.raises(SparsityError, match="traffic-gcn forecasts speeds on roads: train it on traffic data"):
        build_model("traffic-gcn", "{}", small_data(), 0)
    net = build_model("preresnet8", "{}", small_data(), 0)
    with pytest.raises(SparsityError, match="given-map is about the graph of traffic-gcn; PreResNet has none"):
        choose_method(Sparsifying(method="given-map"), net).prepare(net)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("preresnet9", "{}", "got 9"),
        ("resnt50", "{}", "unknown network 'resnt50', the closest is 'resnet50'"),
        (NET, "[]", "arguments must be a JSON object"),
        (NET, '{"depth": 3}', "cannot be called with"),
        ("preresnet8", '{"num_classes": 5}', r"gives \(2, 5\) for 2 inputs of small, which needs \(2, 4\)"),
        ("preresnet8", '{"in_channels": 3}', r"preresnet8 does not run on inputs of shape \(1, 6, 6\): .*channels"),
        (f"{__name__}:Pair", "{}", r"gives tuple for 2 inputs of small"),
        ("no.such:Net", "{}", "cannot find no.such:Net"),
    ],
)
def test_what_does_not_fit_is_named(name: str, arguments: str, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        build_model(name, arguments, small_data(), 0)
