"""Values and what is known of their channels."""

import numpy as np
import torch
from torch import nn

from diffsparse.compaction.graph import Graph, Value
from tests.compaction.tiny import recorded


def test_a_value_tracks_nothing_at_first() -> None:
    value = Value((2, 5, 4))
    assert value.axis is None
    assert value.channels == 0
    assert value.origin is value


def test_numbers_of_fixed_channels_are_read_off_the_data() -> None:
    value = Value((2, 3, 4))
    data = torch.tensor([0.0, 2.0, 5.0]).view(1, 3, 1).expand(2, 3, 4)
    value.track(1, np.array([True, True, False]), data)
    assert value.channels == 3
    assert value.numbers.tolist() == [0, 2, 0]
    assert value.zero.tolist() == [True, False, False]
    assert not value.known


def test_a_value_with_every_channel_fixed_is_known() -> None:
    value = Value((2, 3))
    value.track(1, np.ones(3, bool), torch.ones(2, 3))
    assert value.known


def test_numbers_of_half_precision_are_exact() -> None:
    value = Value((1, 1))
    value.track(1, np.ones(1, bool), torch.tensor([[0.1]], dtype=torch.bfloat16))
    assert value.numbers[0] == float(torch.tensor(0.1, dtype=torch.bfloat16))


def test_origin_goes_all_the_way_back() -> None:
    first, second, third = (Value((1,)) for _ in range(3))
    second.same_as, third.same_as = first, second
    assert third.origin is first


def test_modules_are_counted_by_their_calls() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), relu, nn.Conv2d(4, 4, 1), relu).double()
    counts = recorded(model).call_counts()
    assert counts[relu] == 2
    assert counts[model[0]] == 1
    assert Graph([], [], [], {}).call_counts() == {}


def test_a_value_prints_what_it_is() -> None:
    value = Value((2, 3), parameter="conv.weight")
    value.track(1, np.array([True, False, False]), torch.ones(2, 3))
    assert repr(value) == "<conv.weight (2, 3), channels along 1: 1 fixed>"
