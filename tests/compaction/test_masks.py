"""Masks and the numbers of channels."""

import torch

from diffsparse.compaction.masks import as_array, every, how_many, indices, some


def test_masks() -> None:
    mask = as_array(torch.tensor([0.0, -1.0, 2.0], dtype=torch.bfloat16)) != 0
    assert mask.tolist() == [False, True, True]
    assert (some(mask), every(mask), how_many(mask), indices(mask)) == (True, False, 2, [1, 2])
    assert (some(mask[:1]), every(mask[1:])) == (False, True)
