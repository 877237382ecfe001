import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.gating.zeros import Count
from diffsparse.methods import Method
from diffsparse.methods.method import check_targets
from tests.methods.tiny import EXAMPLE, net
from tests.training.examples import Net


def test_plain_training_changes_nothing() -> None:
    model = net()
    method = Method()
    assert method.prepare(model) is model
    assert method.regulariser(model, torch.optim.SGD(model.parameters(), lr=0.1)) is None
    assert not method.cuts
    with pytest.raises(NotImplementedError):
        method.cut(model, EXAMPLE)


def test_zeros_are_counted_in_scales_or_in_gates() -> None:
    model = net()
    model.bn.weight.data[:5] = 0
    model.stages[0][0].bn1.weight.data[0] = -0.0
    assert Method().zeros(model) == Count(zero=6, total=4 + 4 + 4 + 8 + 8 + 16 + 16)
    gated = ds.sparsify(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    gated[1].gate = ds.SignedGate.from_values([0.0, 0.5, 0.0])
    assert Method().zeros(gated) == Count(zero=2, total=3)


def test_compact_form_of_a_trained_model() -> None:
    model = net()
    model.bn.weight.data[:5] = 0
    model.bn.bias.data[:5] = 0
    assert Method().compacted(model, net(), EXAMPLE).model.classifier.in_features == 11


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ((None, {}), r"needs either a target or a cost \(macs, params, bytes\) to cut to; got target=None, macs=None"),
        ((0.5, {"macs": 0.5}), r"got target=0.5, macs=0.5"),
        ((0.0, {}), "target must be a finite number above 0"),
        ((1.1, {}), "of at most 1, got 1.1"),
    ],
)
def test_targets_that_make_no_sense(targets: tuple[float | None, dict[str, float]], message: str) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        check_targets("slimming", *targets)


def test_live_macs_are_those_of_the_compact_network() -> None:
    model = ds.sparsify(Net(), start=0.5)
    whole = Method().live_macs(model, torch.zeros(1, 1, 6, 6))
    model.bn2.gate.alpha.detach()[:3] = 0
    some = Method().live_macs(model, torch.zeros(1, 1, 6, 6))
    assert whole is not None
    assert some is not None
    assert some < whole
    assert some == ds.compact(model, torch.zeros(1, 1, 6, 6)).after.macs
    assert model.training


def test_live_macs_of_what_cannot_be_compacted_are_unknown() -> None:
    # asked of something whose forward fails on the example
    assert Method().live_macs(nn.Linear(3, 2), torch.zeros(1, 5)) is None
