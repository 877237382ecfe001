import pytest
from torch import nn

import diffsparse as ds
from diffsparse.methods.scales import batch_norms, channels, require_scales


def test_only_ordinary_batch_norms_with_scales_count() -> None:
    sparse = ds.sparsify(nn.Sequential(nn.BatchNorm1d(5)))
    shared = nn.BatchNorm1d(3)
    model = nn.Sequential(sparse, nn.BatchNorm1d(4, affine=False), shared, nn.LayerNorm(2), shared)
    assert batch_norms(model) == [shared]
    assert [scale is shared.weight for scale in require_scales("slimming", model)] == [True]
    assert channels(model) == 3
    with pytest.raises(ds.SparsityError, match="slimming acts on scales of batch norms, and Linear has none"):
        require_scales("slimming", nn.Linear(2, 2))
