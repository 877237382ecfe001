"""The Trainer of transformers trains as a plain loop does, and a resumed run ends with the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse import SparsityError, SparsityWarning
from tests.integrations.subjects import BATCH, STEPS, Net, assert_same, dataset, made, plain_loop

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from diffsparse.integrations.transformers import BudgetTrainer, SaveWithWarning  # noqa: E402

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def arguments(folder: Path, **settings: Any) -> Any:
    usual = {"max_steps": STEPS, "save_steps": 8, "logging_steps": 8, "per_device_train_batch_size": BATCH}
    usual |= {"learning_rate": 0.01, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "weight_decay": 0.0}
    usual |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
    return transformers.TrainingArguments(str(folder), **usual | settings)


class InOrder(BudgetTrainer):  # type: ignore[misc]
    """The data come in the order in which a plain loop takes them."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train(folder: Path, resume: Path | None = None, **settings: Any) -> tuple[Net, ds.Budget, InOrder]:
    net, budget = made()
    x, y = dataset()[:]
    data = [{"x": image, "labels": label} for image, label in zip(x, y, strict=True)]
    trainer = InOrder(net, arguments(folder, **settings), train_dataset=data, budget=budget)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return net, budget, trainer


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_it_trains_as_a_plain_loop_does(tmp_path: Path, clip: float) -> None:
    net, budget, trainer = train(tmp_path, max_grad_norm=clip, save_strategy="no")
    reference, plain = plain_loop(clip=clip or None)
    assert net.first.out_features == 16
    assert budget.history == plain.history
    torch.testing.assert_close(net.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-6)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged[-1]["budget/macs"] == 0.5
    assert logged[-1]["budget/lambda"] == 0
    assert "budget/params" in logged[0]


def test_accumulated_batches_get_the_penalty_once(tmp_path: Path) -> None:
    small = {"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    seen: list[float] = []
    net, budget = made()
    (expected,) = torch.autograd.grad(budget.penalty(), net.norm.gate.beta)

    class Constant(InOrder):
        """The loss has no gradient for gates, so all that they get is the penalty."""

        def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return model.last.bias.sum() + 0 * model(**inputs)["loss"]

        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            made = super().create_optimizer(*args, **kwargs)
            # the gate leaves the network after step 12
            made.register_step_pre_hook(lambda *_: budget.finished or seen.append(net.norm.gate.beta.grad.item()))
            return made

    x, y = dataset()[:]
    data = [{"x": image, "labels": label} for image, label in zip(x, y, strict=True)]
    args = arguments(tmp_path, **small, max_steps=STEPS // 2 + 1)
    trainer = Constant(net, args, train_dataset=data, budget=budget)
    with pytest.warns(SparsityWarning, match="the run has 13 steps of the optimiser"):
        trainer.train()
    assert len(seen) == 12
    assert seen[0] == pytest.approx(expected.item(), rel=1e-6)
    assert budget.finished


def bert() -> tuple[nn.Module, ds.Budget]:
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=40, **SIZES))
    example = {"input_ids": torch.randint(3, 40, (2, 12))}
    ds.sparsify(model, example, start=1.0)
    return model, ds.Budget(model, example, macs=0.5, steps=STEPS)


def train_bert(folder: Path, resume: Path | None = None, **settings: Any) -> tuple[nn.Module, ds.Budget]:
    model, budget = bert()
    ids = torch.randint(3, 40, (64, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": number % 2} for number, row in enumerate(ids)]
    small = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-3}
    args = arguments(folder, **small | {"weight_decay": 0.01, "lr_scheduler_type": "linear"} | settings)
    trainer = BudgetTrainer(model, args, train_dataset=data, budget=budget)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return model, budget


@pytest.mark.parametrize("bf16", [False, True])
def test_a_resumed_run_is_the_same_to_the_last_bit(
    tmp_path: Path, bf16: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, budget = train_bert(tmp_path / "whole", bf16=bf16)
    assert 0.48 < budget.cost["macs"] <= 0.5
    # one from before the model became small, one from after it
    for step in (8, 16):
        again, other = train_bert(tmp_path / "again", tmp_path / "whole" / f"checkpoint-{step}", bf16=bf16)
        assert other.history == budget.history
        assert_same(model, again)
    assert "missing keys" not in caplog.text
    with pytest.warns(SparsityWarning, match=r"this model is compact.*Use ds.save"):
        again.save_pretrained(tmp_path / "saved")
    assert isinstance(model.save_pretrained, SaveWithWarning)


def test_gates_are_not_decayed(tmp_path: Path) -> None:
    model, budget = bert()
    trainer = BudgetTrainer(model, arguments(tmp_path), train_dataset=[], budget=budget)
    names = trainer.get_decay_parameter_names(model)
    assert "classifier.weight" in names
    assert not any("gate" in name for name in names)


def test_a_penalty_is_taken_too(tmp_path: Path) -> None:
    x, y = dataset()[:]
    data = [{"x": image, "labels": label} for image, label in zip(x, y, strict=True)]
    nets = []
    for resume in (None, str(tmp_path / "checkpoint-8")):
        torch.manual_seed(0)
        nets.append(ds.sparsify(Net(), start=1.0))
        penalty = ds.Penalty(nets[-1], schedule=ds.GradualStrength(0.0, 0.1, 0, 3))
        trainer = InOrder(nets[-1], arguments(tmp_path), train_dataset=data, budget=penalty)
        trainer.train(resume_from_checkpoint=resume)
        assert penalty.strength == pytest.approx(0.1 - 0.1 / 27)
    assert_same(*nets)


def test_mistakes_are_said(tmp_path: Path) -> None:
    net, budget = made()
    args = arguments(tmp_path)
    with pytest.raises(SparsityError, match=r"give a ds.Budget"):
        BudgetTrainer(net, args, budget=0.5)
    with pytest.raises(SparsityError, match="is not a part of the Trainer's model"):
        BudgetTrainer(Net(), args, budget=budget)
    with pytest.raises(SparsityError, match="auto_find_batch_size"):
        BudgetTrainer(net, arguments(tmp_path, auto_find_batch_size=True), budget=budget)
    trainer = BudgetTrainer(net, args, train_dataset=[{"x": torch.zeros(8), "labels": 0}] * 40, budget=budget)
    with pytest.raises(SparsityError, match="has no state of a budget"):
        trainer.train(resume_from_checkpoint=str(tmp_path))
