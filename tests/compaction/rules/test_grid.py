"""Channels along several dimensions: masks that broadcast, stand-ins with one dimension."""

import numpy as np
import torch

from diffsparse.compaction.graph import Graph, Value
from diffsparse.compaction.rules.grid import axes_of, facts, flattened, merged, read

EMPTY = Graph([], [], [], {})


def heads(shape: tuple[int, ...] = (2, 2, 5, 3), axes: tuple[int, ...] = (1, 3)) -> Value:
    """Two heads of three channels: the first head is zero, and the last channel of the second is one."""
    value = Value(shape)
    data = torch.zeros(shape)
    data[:, 1, :, 2] = 1
    value.track(axes, np.array([True, True, True, False, False, True]), data)
    value.need, value.keep = np.zeros((2, 6), bool)
    return value


def test_masks_are_flattened_over_all_axes() -> None:
    value = heads()
    assert value.axis is None
    assert value.channels == 6
    assert value.grid == (1, 2, 1, 3)
    assert value.numbers.tolist() == [0, 0, 0, 0, 0, 1]
    assert value.zero.tolist() == [True, True, True, False, False, False]
    assert repr(value) == "<value (2, 2, 5, 3), channels along (1, 3): 4 fixed>"


def test_a_single_channel_lies_along_no_dimension() -> None:
    value = Value((2, 3))
    value.track((), np.ones(1, bool), torch.full((2, 3), 4.0))
    assert (value.axis, value.channels, value.grid, value.known) == (None, 1, (1, 1), True)
    assert value.numbers.tolist() == [4.0]


def test_axes_of_a_result_are_those_of_all_operands() -> None:
    one = Value((5, 3))
    one.track(0)
    assert axes_of([heads(), one, Value((2, 2, 5, 3))], 4) == (1, 2, 3)


def test_facts_of_stored_tensors_hold_along_the_axes_of_the_result() -> None:
    stored = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 3.0]])
    graph = Graph([], [], [], {"scale": stored})
    fixed, zero = facts(Value((2, 3), parameter="scale"), graph, (3,), 4)
    assert fixed.tolist() == [[True, True, False]]
    assert zero.tolist() == [[True, False, False]]
    fixed, _ = facts(Value((2, 3), parameter="scale"), graph, (2, 3), 4)
    assert fixed.all()
    assert not facts(Value((2, 3)), graph, (3,), 4)[0].any()


def test_what_is_read_reaches_every_axis_of_the_operand() -> None:
    value = heads()
    wanted = np.array([True, False, False, False, True, False])
    read(value, wanted.reshape(value.grid))
    assert value.need.tolist() == wanted.tolist()
    by_head = Value((2, 2, 1, 1))
    by_head.track(1)
    by_head.need = np.zeros(2, bool)
    read(by_head, np.array([False, False, False, False, True, False]).reshape(value.grid))
    assert by_head.need.tolist() == [False, True]
    fewer = Value((5, 3))
    fewer.track(1)
    fewer.need = np.zeros(3, bool)
    read(fewer, wanted.reshape(value.grid))
    assert fewer.need.tolist() == [True, True, False]


def test_a_value_that_is_broadcast_along_its_axis_is_read_whole() -> None:
    one = Value((2, 1, 4))
    one.track(1)
    one.need = np.zeros(1, bool)
    read(one, np.array([False, True, False]).reshape(1, 3, 1))
    assert one.need.all()


def test_flattened_fills_the_axes() -> None:
    by_row = np.array([True, False]).reshape(2, 1, 1)
    assert flattened(by_row, Value((2, 4, 3)), (0, 2)).tolist() == [True] * 3 + [False] * 3


def test_a_stand_in_knows_what_holds_whatever_lies_along_the_other_axes() -> None:
    along = merged(heads(), 3)
    assert along.axis == 3
    assert not along.fixed.any()
    batch = Value((2, 3))
    batch.track((0, 1), np.array([True, True, False, True, True, True]), torch.tensor([[1.0, 2, 0], [1, 3, 4]]))
    along = merged(batch, 1)
    assert along.fixed.tolist() == [True, False, False]
    assert along.numbers.tolist() == [1, 0, 0]
    assert merged(heads(), 0).axes is None
