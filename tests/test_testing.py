"""`check_rule` passes rules that hold and names what is wrong with the others."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction import Graph, Node, Rule
from diffsparse.compaction.rules import POINTWISE, RULES, EachChannel
from diffsparse.testing import check_rule, zero_channels, zero_random_channels


class ClaimsZeros(EachChannel):
    def infer(self, node: Node, graph: Graph) -> bool:
        node.output.track(1, np.ones(node.output.shape[1], bool), node.result)
        return True


class ReadsNothing(EachChannel):
    def needs(self, node: Node) -> None:
        """A lie."""


@pytest.mark.parametrize("spatial", [0, 1, 2, 3])
def test_a_rule_that_holds(spatial: int) -> None:
    ds.register_rule(torch.erfc, EachChannel())
    check_rule(torch.erfc, spatial=spatial, trials=8)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (ClaimsZeros(), "fell back to a safer plan: outputs differ"),
        (ReadsNothing(), "fell back to a safer plan: outputs differ"),
        (Rule(), "no dead channel was removed behind the operator in 6 networks: the rule reads or keeps every"),
    ],
)
def test_a_rule_that_does_not_hold(rule: Rule, message: str) -> None:
    ds.register_rule("erfc", rule)
    with pytest.raises(AssertionError, match=message):
        check_rule(torch.erfc, trials=6)


def test_no_rule_at_all() -> None:
    with pytest.raises(AssertionError, match=r"no dead channel .*: erfc: an operation without a rule"):
        check_rule(torch.erfc, trials=3)
    check_rule(torch.erfc, trials=3, must_remove=False)


def test_the_message_has_the_seed_that_shows_it_again() -> None:
    ds.register_rule(torch.erfc, ReadsNothing())
    with pytest.raises(AssertionError) as first:
        check_rule(torch.erfc, seed=100)
    seed = int(re.findall(r"seed=(\d+), trials=1", str(first.value))[0])
    with pytest.raises(AssertionError) as again:
        check_rule(torch.erfc, seed=seed, trials=1)
    assert str(again.value) == str(first.value)


def test_an_operator_that_returns_something_else_is_refused() -> None:
    with pytest.raises(ds.SparsityError, match=r"must return \(N, C\) or \(N, C, ...\)"):
        check_rule(lambda x: x.unsqueeze(1))


def test_an_operator_is_registered_once_unless_it_is_replaced() -> None:
    ds.register_rule(torch.erfc, POINTWISE)
    with pytest.raises(ds.SparsityError, match="'erfc' already has a rule, Pointwise; replace=True replaces it"):
        ds.register_rule("erfc", EachChannel())
    ds.register_rule("erfc", EachChannel(), replace=True)
    assert isinstance(RULES["erfc"], EachChannel)
    with pytest.raises(ds.SparsityError, match="'relu' already has a rule"):
        ds.register_rule(F.relu, EachChannel())


@pytest.mark.parametrize("op", ["", 3, None])
def test_operators_that_are_none(op: object) -> None:
    with pytest.raises(ds.SparsityError, match="op must be a torch function or the name of one"):
        ds.register_rule(op, EachChannel())  # type: ignore[arg-type]


def test_rules_that_are_none() -> None:
    with pytest.raises(ds.SparsityError, match="rule must be an instance of Rule, got <class"):
        ds.register_rule("erfc", EachChannel)  # type: ignore[arg-type]


def test_channels_are_zeroed() -> None:
    layer, norm = nn.Linear(3, 4, bias=False), nn.BatchNorm1d(10)
    zero_channels(layer, [1, 2])
    assert layer.weight.eq(0).all(1).tolist() == [False, True, True, False]
    zero_random_channels(norm, 0.3, torch.Generator().manual_seed(0))
    assert int(norm.weight.eq(0).sum()) == 3


def test_the_model_of_the_user_is_not_changed() -> None:
    slope = nn.PReLU(8)
    before = slope.weight.clone()
    check_rule(slope, widths=(8,), trials=3)
    assert torch.equal(slope.weight, before)
    assert slope.weight.dtype == torch.float32


def combine(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y], 1)


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        (F.relu, {}),
        (torch.sigmoid, {"spatial": 1}),
        (lambda x: x * torch.sigmoid(x), {"spatial": 0}),
        (torch.add, {"inputs": 2}),
        (torch.mul, {"inputs": 2, "spatial": 1}),
        (torch.maximum, {"inputs": 2, "spatial": 0}),
        (combine, {"inputs": 2}),
        (lambda x: F.max_pool2d(x, 2), {}),
        (lambda x: F.avg_pool2d(x, 3, padding=1), {}),
        (lambda x: F.pad(x, (1, 0, 2, 1)), {}),
        (lambda x: F.interpolate(x, scale_factor=2), {}),
        (lambda x: x.mean((2, 3)), {}),
        (lambda x: x.flatten(1), {"spatial": 1}),
        (lambda x: x.transpose(1, 2).relu().transpose(1, 2), {"spatial": 1}),
        (lambda x: F.pixel_shuffle(x, 2), {"widths": (8, 12), "seed": 20}),
        (nn.PReLU(8), {"widths": (8,)}),
        (nn.Conv2d(8, 8, 3, groups=4), {"widths": (8,)}),
        (nn.ConvTranspose2d(8, 6, 3, stride=2), {"widths": (8,), "must_remove": False}),
        (nn.BatchNorm2d(8), {"widths": (8,)}),
    ],
)
def test_our_own_rules(operator: nn.Module, options: dict[str, object]) -> None:
    check_rule(operator, trials=8, **options)  # type: ignore[arg-type]
