import pytest
import torch

from diffsparse.training.classification import ClassificationObjective


def test_label_smoothing_spreads_part_of_the_target() -> None:
    outputs, targets = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
    logs = outputs.log_softmax(1)[0]
    expected = -(0.7 + 0.1) * logs[0] - 0.1 * logs[1] - 0.1 * logs[2]
    assert ClassificationObjective(label_smoothing=0.3).loss(outputs, outputs, targets).item() == pytest.approx(
        expected.item()
    )


def test_figures_of_added_sums_are_those_of_everything_at_once() -> None:
    objective = ClassificationObjective(label_smoothing=0.3)
    outputs, targets = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    whole = objective.figures(objective.sums(outputs, targets))
    pieces = objective.sums(outputs[:2], targets[:2]) + objective.sums(outputs[2:], targets[2:])
    assert objective.figures(pieces) == pytest.approx(whole)
    assert whole["accuracy"] == (outputs.argmax(1) == targets).double().mean()
    # what is reported is comparable between runs: smoothing is no part of it
    assert whole["loss"] == pytest.approx(torch.nn.functional.cross_entropy(outputs, targets).item())
    assert len(objective.sums(outputs, targets)) == objective.sizes


def test_half_precision_outputs_are_summed_in_full() -> None:
    outputs, targets = torch.randn(64, 3).bfloat16(), torch.zeros(64, dtype=torch.long)
    loss, right, count = ClassificationObjective().sums(outputs, targets).tolist()
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs.double(), targets, reduction="sum").item())
    assert (right, count) == ((outputs.argmax(1) == 0).sum(), 64)
