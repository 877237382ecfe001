import pytest
import torch
from torch import nn

from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.evaluate import evaluate
from diffsparse.training.processes import Processes
from tests.training.examples import Net, small_data

ALONE = Processes(device=torch.device("cpu"))


def test_figures_over_all_entries_in_eval_mode_whatever_the_batch() -> None:
    data = small_data(test=41)
    model = Net().train()
    before = model.bn1.running_mean.clone()
    found = [evaluate(model, data.test, ClassificationObjective(), batch, ALONE) for batch in (8, 41)]
    assert found[0] == pytest.approx(found[1])
    assert torch.equal(model.bn1.running_mean, before)
    assert model.training
    images, labels = next(data.test.in_order(41))
    with torch.no_grad():
        outputs = model.eval()(images)
    assert found[0]["accuracy"] == pytest.approx((outputs.argmax(1) == labels).double().mean().item())
    assert found[0]["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, labels).item())
