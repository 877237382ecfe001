"""Sizes that are tried: different remainders, batches and proportions, whatever the size of the example."""

import pytest
import torch

from diffsparse.compaction.trial_inputs import at_other_sizes, with_one_sample


@pytest.mark.parametrize("size", [3, 8, 12, 13, 16, 28, 32, 60, 224])
def test_sizes_differ_in_what_code_may_ask_for(size):
    tried = [x.shape for (x,) in at_other_sizes((torch.zeros(2, 3, size, size),))]
    heights, widths = zip(*(shape[2:] for shape in tried), strict=True)
    for sizes in (heights, widths):
        for of in (2, 3):
            assert {n % of for n in sizes} == {*range(of)}
        assert any(n % 4 for n in sizes)
        assert len({n // 8 for n in sizes}) > 1
        assert max(sizes) > size
    assert any(height < width for height, width in zip(heights, widths, strict=True))
    assert any(height > width for height, width in zip(heights, widths, strict=True))
    assert {shape[0] for shape in tried} == {2}


def test_one_sample():
    (x,) = with_one_sample((torch.zeros(4, 3, 12, 12),))
    assert len(x) == 1
