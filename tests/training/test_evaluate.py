from pathlib import Path

import pytest
import torch
from torch import nn

from diffsparse import sparsify
from diffsparse.compaction import compact
from diffsparse.training.evaluate import evaluate, live_macs
from diffsparse.training.objective import Classification
from diffsparse.training.processes import Processes
from tests.training.examples import Net, small_data

ALONE = Processes(device=torch.device("cpu"))


def test_figures_over_all_entries_in_eval_mode_whatever_the_batch() -> None:
    data = small_data(test=41)
    model = Net().train()
    before = model.bn1.running_mean.clone()
    found = [evaluate(model, data.test, Classification(), batch, ALONE) for batch in (8, 41)]
    assert found[0] == pytest.approx(found[1])
    assert torch.equal(model.bn1.running_mean, before)
    assert model.training
    images, labels = next(data.test.in_order(41))
    with torch.no_grad():
        outputs = model.eval()(images)
    assert found[0]["accuracy"] == pytest.approx((outputs.argmax(1) == labels).double().mean().item())
    assert found[0]["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, labels).item())


def test_live_macs_are_those_of_the_compact_network() -> None:
    model = sparsify(Net(), start=0.5)
    whole = live_macs(model, torch.zeros(1, 1, 6, 6))
    model.bn2.gate.alpha.detach()[:3] = 0
    some = live_macs(model, torch.zeros(1, 1, 6, 6))
    assert whole is not None
    assert some is not None
    assert some < whole
    assert some == compact(model, torch.zeros(1, 1, 6, 6)).after.macs
    assert model.training


def test_live_macs_of_what_cannot_be_compacted_are_unknown(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    # asked of something whose forward fails on the example
    assert live_macs(nn.Linear(3, 2), torch.zeros(1, 5)) is None
