import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.methods import Sparsifying
from diffsparse.methods.costs import CostLimits, asked_costs


def cost(width: int) -> ds.Measurement:
    return ds.measure(nn.Linear(10, width, bias=False), torch.zeros(1, 10), latency=False)


def test_what_was_asked_for() -> None:
    assert asked_costs(Sparsifying(macs=0.5, bytes=100)) == {"macs": 0.5, "bytes": 100}
    assert asked_costs(Sparsifying(target=0.5)) == {}
    assert asked_costs(object()) == {}


def test_the_hardest_limit_counts() -> None:
    limits = CostLimits({"macs": 0.5, "params": 40}, cost(10))
    assert limits.excess(cost(10)) == 2.5
    assert limits.excess(cost(5)) == 1.25
    assert limits.excess(cost(4)) == 1.0
    assert limits.words() == "macs=0.5, params=40"
    assert limits.shares(cost(5)) == "50.0% of the MACs and 50.0% of the parameters"


def test_more_than_the_whole_is_a_mistake() -> None:
    with pytest.raises(ds.SparsityError, match="params=101 is more than the whole network costs, 100"):
        CostLimits({"params": 101}, cost(10))
