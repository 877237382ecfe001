import dataclasses
import math
import statistics
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse import SparsityError
from diffsparse.training import Distillation, Optimisation, Recipe, Sparsifying, distillation_loss, train
from diffsparse.training.classification import ClassificationObjective


def logits(seed: int) -> Tensor:
    return 3 * torch.randn(5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_slow_formula(temperature: float) -> None:
    student, teacher = logits(0), logits(1)
    total = 0.0
    for student_row, teacher_row in zip(student.tolist(), teacher.tolist(), strict=True):
        for p, q in zip(softmax(teacher_row, temperature), softmax(student_row, temperature), strict=True):
            total += p * math.log(p / q)
    expected = temperature**2 * total / 5
    assert distillation_loss(student, teacher, temperature).item() == pytest.approx(expected, rel=1e-5)


def test_gradient_is_that_of_cross_entropy_with_the_teacher_as_target() -> None:
    student, teacher = logits(0).requires_grad_(), logits(1).requires_grad_()
    (found,) = torch.autograd.grad(distillation_loss(student, teacher, 4.0), student)
    cross_entropy = 16 * F.cross_entropy(student / 4, (teacher.detach() / 4).softmax(1))
    (expected,) = torch.autograd.grad(cross_entropy, student)
    assert torch.allclose(found, expected, atol=1e-6)
    # the student as target, as the paper prints it, is another gradient
    assert not torch.allclose(found, torch.autograd.grad(distillation_loss(teacher, student, 4.0), teacher)[0])


def test_the_teacher_gets_no_gradient() -> None:
    student, teacher = logits(0).requires_grad_(), logits(1).requires_grad_()
    distillation_loss(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None


def test_nothing_is_lost_between_far_apart_logits_in_half_precision() -> None:
    student, teacher = torch.tensor([[60.0, -60.0]]).half(), torch.tensor([[-60.0, 60.0]]).half()
    assert distillation_loss(student, teacher, 1.0).item() == pytest.approx(120)


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (4,)])
def test_other_classes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SparsityError, match=r"the same classes, got shapes \(5, 4\) and"):
        distillation_loss(logits(0), torch.zeros(shape))


def test_the_objective_mixes_labels_and_teacher() -> None:
    inputs, targets = torch.randn(5, 1, 6, 6), torch.tensor([0, 1, 2, 3, 0])
    teacher = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 4))
    outputs = logits(0).float().requires_grad_()
    objective = ClassificationObjective(0.1, teacher, alpha=0.3, temperature=2.0)
    loss = objective.loss(outputs, inputs, targets)
    soft = distillation_loss(outputs, teacher(inputs), 2.0)
    assert loss.item() == pytest.approx(
        0.7 * F.cross_entropy(outputs, targets, label_smoothing=0.1).item() + 0.3 * soft.item()
    )
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_distilled_student_is_at_least_as_good(tmp_path: Path) -> None:
    quick = Optimisation(learning_rate=0.2)
    teacher = Recipe(
        model="preresnet8-0.5", epochs=5, batch_size=128, optimisation=quick, sparsifying=Sparsifying(method="plain")
    )
    taught = train(teacher, tmp_path / "teacher")["figures"]["trained"]["accuracy"]
    lesson = Distillation(teacher=str(tmp_path / "teacher" / "trained.safetensors"), teacher_model="preresnet8-0.5")
    accuracy, loss = [], []
    for name, distillation in (("alone", Distillation()), ("taught", lesson)):
        student = Recipe(model="preresnet8-0.25", epochs=4, distillation=distillation)
        results = [
            train(dataclasses.replace(student, seed=seed), tmp_path / f"{name}{seed}")["figures"]["compact"]
            for seed in (0, 1, 2)
        ]
        accuracy.append(statistics.mean(result["accuracy"] for result in results))
        loss.append(statistics.mean(result["loss"] for result in results))
    assert taught > 0.95
    assert accuracy[1] >= accuracy[0]
    assert loss[1] < loss[0]
