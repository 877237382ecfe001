"""The default rule and the helpers that rules are made of."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import diffsparse as ds
from diffsparse.compaction.graph import Node, Value
from diffsparse.compaction.rules import OPAQUE, RULES, describe
from diffsparse.compaction.rules.base import Rule, argument, numbers_along, pin, unite, widen
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, X, analysed, complement, node_of, recorded, tiny


def value(keep: list[int]) -> Value:
    made = Value((2, len(keep), 4))
    made.track(1)
    made.keep, made.need = np.array(keep, bool), np.zeros(len(keep), bool)
    return made


def sum_over_channels(y: torch.Tensor) -> torch.Tensor:
    return y.cumsum(1)


def test_an_operator_without_a_rule_reads_everything_and_says_so() -> None:
    analysis = analysed(tiny(sum_over_channels, dead=[0, 1]))
    node = node_of(analysis.graph, "cumsum")
    assert node.rule is OPAQUE
    assert node.output.axis is None
    assert node.inputs[0].keep.all()
    assert OPAQUE.refusal(node) == "cumsum: an operation without a rule"


def test_around_an_unknown_operator_only_the_layers_shrink() -> None:
    model = tiny(sum_over_channels, dead=[0, 1])
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert small.model.head.in_channels == 8
    assert same(model, small.model, OTHER)


def test_every_rule_has_words_for_a_refusal() -> None:
    assert all(isinstance(rule, Rule) and rule.reason for rule in RULES.values())


def test_a_rule_that_does_not_apply_gives_way_to_the_default() -> None:
    graph = recorded(tiny(lambda y: y.index_select(1, torch.arange(8))))
    node = node_of(graph, "index_select")
    assert node.rule is OPAQUE
    assert describe(Node("no such thing", (), {}, [], [], None, None), graph) is OPAQUE


def test_pin_and_unite_and_widen_report_change_once() -> None:
    a, b = value([1, 0, 0]), value([0, 1, 0])
    assert unite([a, b])
    assert a.keep.tolist() == b.keep.tolist() == [True, True, False]
    assert not unite([a, b])
    assert widen(a, np.array([False, False, True]))
    assert not widen(a, np.array([False, False, True]))
    c = value([0, 1, 0])
    assert pin([a, c])
    assert b.keep.all()
    assert not pin([a, b])


@pytest.mark.parametrize(("args", "kwargs"), [((1, 5), {}), ((1,), {"padding": 5})])
def test_an_argument_by_position_or_name(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    node = Node("pool", args, kwargs, [], [], None, None)
    assert argument(node, 1, "padding", 0) == 5
    assert argument(node, 2, "ceil_mode", False) is False


def test_numbers_along_a_dimension() -> None:
    tensor = torch.tensor([[1.0, 1.0], [2.0, 3.0]])
    constant, numbers = numbers_along(tensor, 0)
    assert constant.tolist() == [True, False]
    assert numbers[0] == 1.0
    assert numbers_along(tensor, 1)[0].tolist() == [False, False]


def test_only_read_channels_stay_in_front_of_a_known_operator() -> None:
    analysis = analysed(tiny(F.relu, dead=[2, 5]))
    assert node_of(analysis.graph, "relu").output.keep.nonzero()[0].tolist() == complement(2, 5)
