"""Tensors are found, and changed, wherever they hide."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch

from diffsparse.example import map_tensors, tensors_in


def test_tensors_are_found_wherever_they_hide() -> None:
    @dataclass
    class Box:
        held: object

    pair = namedtuple("pair", "a b")
    t = [torch.full((), float(i)) for i in range(6)]
    thing = [t[0], (t[1], {"x": t[2]}), Box(held=[t[3]]), pair(t[4], None), OrderedDict(y=t[5]), "text", Box]
    assert [int(found) for found in tensors_in(thing)] == [0, 1, 2, 3, 4, 5]


def test_tensors_are_changed_and_collections_keep_their_types() -> None:
    pair = namedtuple("pair", "a b")
    thing = [torch.ones(2), pair(torch.ones(1), "text"), OrderedDict(x=(torch.ones(3), None)), torch.Size([4])]
    got = map_tensors(lambda tensor: 2 * tensor, thing)
    assert torch.equal(got[0], torch.full((2,), 2.0))
    assert isinstance(got[1], pair)
    assert got[1].b == "text"
    assert isinstance(got[2], OrderedDict)
    assert isinstance(got[2]["x"], tuple)
    assert isinstance(got[3], torch.Size)
    assert [float(tensor.sum()) for tensor in tensors_in(got)] == [4, 2, 6]
    assert [float(tensor.sum()) for tensor in tensors_in(thing)] == [2, 1, 3]
