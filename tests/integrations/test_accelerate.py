"""Accelerate trains as a plain loop does, and a resumed run ends with the same bits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import diffsparse as ds
from diffsparse import SparsityError, SparsityWarning
from tests.integrations.subjects import BATCH, STEPS, Net, assert_same, batches, made, plain_loop

accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState  # noqa: E402

from diffsparse.integrations.accelerate import AcceleratedBudget  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps the settings of the first accelerator for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def train(
    folder: Path | None = None, resume: Path | None = None, size: int = BATCH, **settings: object
) -> tuple[Net, ds.Budget]:
    net, given = made()
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    budget = AcceleratedBudget(accelerator, given)
    own = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.0)
    model, optimizer, loader = accelerator.prepare(net, own, batches(size))
    done = 0
    if resume is not None:
        accelerator.load_state(str(resume))
        done = int(resume.name)
    for epoch in range(done, 3):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y) + budget.penalty()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                budget.step()
        if folder is not None:
            accelerator.save_state(str(folder / str(epoch + 1)))
    return net, given


def test_it_trains_as_a_plain_loop_does() -> None:
    net, budget = train()
    reference, plain = plain_loop(clip=0.5)
    assert net.first.out_features == 16
    assert budget.history == plain.history
    assert_same(net, reference)


def test_accumulated_batches_are_one_step() -> None:
    _, budget = train(size=BATCH // 2, gradient_accumulation_steps=2)
    assert budget.finished
    assert budget.state_dict()["step"] == STEPS


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path: Path, precision: str) -> None:
    net, budget = train(tmp_path, mixed_precision=precision)
    for epochs in (1, 2):
        again, other = train(resume=tmp_path / str(epochs), mixed_precision=precision)
        assert other.history == budget.history
        assert_same(net, again)


def test_a_penalty_is_taken_too(tmp_path: Path) -> None:
    net, _ = made()
    penalty = ds.Penalty(net, schedule=ds.GradualStrength(0.0, 0.1, 0, 2))
    accelerator = accelerate.Accelerator(cpu=True)
    budget = AcceleratedBudget(accelerator, penalty)
    penalty.step()
    assert budget.penalty() == penalty()
    assert not budget.step()
    accelerator.save_state(str(tmp_path / "one"))
    penalty.step()
    accelerator.load_state(str(tmp_path / "one"))
    assert penalty.strength == pytest.approx(0.0875)


def test_a_run_that_ends_too_early_is_told(recwarn: pytest.WarningsRecorder) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    AcceleratedBudget(accelerator, train()[1])
    accelerator.end_training()
    assert not recwarn.list
    AcceleratedBudget(accelerator, made()[1])
    with pytest.warns(
        SparsityWarning,
        match="ends after 0 of the 24 steps that its budget was made for, before the model became small",
    ):
        accelerator.end_training()


def test_mistakes_are_said(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    with pytest.raises(SparsityError, match=r"give a ds.Budget"):
        AcceleratedBudget(accelerator, 0.5)
    AcceleratedBudget(accelerator, made()[1])
    with pytest.raises(SparsityError, match="has no state of a budget"):
        accelerator.load_state(str(tmp_path))
