"""Zeros and ones."""

import torch

from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import chosen, node_of, recorded, tiny


def test_blank_tensors_hold_one_number() -> None:
    small = shrinks(tiny(lambda y: y * torch.ones_like(y) + torch.zeros_like(y), dead=[1], fixed=[2]))
    assert small.model.head.in_channels == 6
    assert not small.kept
    assert chosen(node_of(recorded(tiny(lambda y: y * torch.zeros_like(y))), "mul").output.fixed) == list(range(8))


def test_a_number_made_from_nothing_leaves_widths_alone() -> None:
    small = shrinks(tiny(lambda y: y * y.new_ones(1) + torch.zeros((), dtype=y.dtype), dead=[0, 1]))
    assert small.model.head.in_channels == 6
    assert not small.kept
