"""Lightning trains as a plain loop does, and a resumed run ends with the same bits."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse import SparsityError, SparsityWarning
from tests.integrations.subjects import BATCH, STEPS, Net, assert_same, batches, dataset, made, plain_loop

lightning = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from diffsparse.integrations.lightning import BudgetCallback, _check_setting  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path.:UserWarning")


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, net: nn.Module, lr: float = 0.01) -> None:
        super().__init__()
        self.net, self.lr = net, lr

    def training_step(self, batch: Any, _: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.0)


class Manual(Module):
    """Two optimisers, stepped by hand, the second for the gates."""

    automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        weights, gates = ds.parameter_groups(self.net, weight_decay=0.0)
        return [torch.optim.AdamW([group], lr=self.lr, weight_decay=0.0) for group in (weights, gates)]


def trainer(*callbacks: Any, **settings: Any) -> Any:
    usual = {"max_epochs": 3, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    usual |= {"enable_model_summary": False, "enable_checkpointing": False}
    return lightning.Trainer(callbacks=list(callbacks), **usual | settings)


def fit(kind: type[Module] = Module, size: int = BATCH, **settings: Any) -> tuple[Net, ds.Budget]:
    net, budget = made()
    trainer(BudgetCallback(budget), **settings).fit(kind(net), batches(size))
    return net, budget


@pytest.mark.parametrize("kind", [Module, Manual])
def test_it_trains_as_a_plain_loop_does(kind: type[Module]) -> None:
    net, budget = fit(kind)
    reference, plain = plain_loop()
    assert net.first.out_features == 16
    assert budget.history == plain.history
    for name, tensor in reference.state_dict().items():
        # the penalty's gradient is added to that of the loss, not computed with it
        torch.testing.assert_close(net.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_the_penalty_is_clipped_with_the_loss() -> None:
    net, _ = fit(gradient_clip_val=0.05)
    reference, _ = plain_loop(clip=0.05)
    torch.testing.assert_close(net.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(net.last.weight, plain_loop()[0].last.weight, atol=1e-3)


def test_the_penalty_comes_once_per_accumulated_step() -> None:
    seen: list[Tensor] = []
    net, budget = made()

    class Watch(lightning.Callback):  # type: ignore[misc]
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            seen.append(net.norm.gate.beta.grad.clone())

    small, _ = made()
    x, y = dataset()[: 2 * BATCH]
    loss = sum(F.cross_entropy(small(part), target) / 2 for part, target in zip(x.chunk(2), y.chunk(2), strict=True))
    loss.backward()
    (expected,) = torch.autograd.grad(budget.penalty(), net.norm.gate.beta)
    with pytest.warns(SparsityWarning, match="the run has 12 steps of the optimiser, but the budget was made for 24"):
        trainer(BudgetCallback(budget), Watch(), accumulate_grad_batches=2).fit(Module(net), batches())
    torch.testing.assert_close(seen[0], small.norm.gate.beta.grad + expected)
    assert len(seen) == 12
    assert budget.finished


class Scaled(MixedPrecision):  # type: ignore[misc]
    """Gradients are scaled, but all is computed in float32, so that it can be compared."""

    def __init__(self) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))

    def forward_context(self) -> Any:
        return nullcontext()


class Fused(Module):
    """An optimiser that divides gradients by the scale in its own step."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.0, fused=True)


@pytest.mark.parametrize("kind", [Module, Fused])
def test_scaled_gradients_get_the_right_share_of_the_penalty(kind: type[Module]) -> None:
    net, budget = fit(kind, plugins=[Scaled()])
    reference, plain = plain_loop()
    assert budget.history == plain.history
    torch.testing.assert_close(net.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-6)


def test_mixed_precision() -> None:
    net, budget = fit(precision="bf16-mixed")
    assert budget.finished
    assert net.first.out_features == 16
    assert all(torch.isfinite(tensor).all() for tensor in net.state_dict().values())


@pytest.mark.parametrize("kind", [Module, Manual])
@pytest.mark.parametrize("shrinks", [1, 2])
def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path: Path, kind: type[Module], shrinks: int) -> None:
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    net, budget = made(shrinks=shrinks)
    trainer(BudgetCallback(budget), keep, enable_checkpointing=True).fit(kind(net), batches())
    for epoch, small in ((0, False), (1, True)):
        again, other = made(shrinks=shrinks)
        module = kind(again)
        trainer(BudgetCallback(other)).fit(module, batches(), ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
        assert other.history == budget.history
        assert_same(net, again)
        assert "on_load_checkpoint" not in vars(module)
        saved = torch.load(tmp_path / f"epoch={epoch}.ckpt", weights_only=True)
        assert bool(saved["callbacks"]["BudgetCallback"]["plans"]) == (small or shrinks == 2)


def test_checkpoints_of_small_networks_can_be_tested(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    net, budget = made()
    own = trainer(BudgetCallback(budget), keep, enable_checkpointing=True)
    own.fit(Module(net), batches())
    (result,) = own.test(Module(net), batches(), verbose=False)
    again, other = made()
    (loaded,) = trainer(BudgetCallback(other)).test(
        Module(again), batches(), ckpt_path=tmp_path / "epoch=2.ckpt", verbose=False
    )
    assert again.first.out_features == 16
    assert loaded == result
    # in the same program, where the network is small already
    assert own.test(Module(net), batches(), ckpt_path=tmp_path / "epoch=2.ckpt", verbose=False) == [result]
    with pytest.raises(SparsityError, match="another size than it has now"):
        own.test(Module(net), batches(), ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)


def test_a_penalty_is_taken_too(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    nets = []
    for path in (None, tmp_path / "epoch=0.ckpt"):
        torch.manual_seed(0)
        nets.append(ds.sparsify(Net(), start=1.0))
        penalty = ds.Penalty(nets[-1], schedule=ds.GradualStrength(0.0, 0.1, 0, 3))
        saving = path is None
        own = trainer(BudgetCallback(penalty), *([keep] if saving else []), enable_checkpointing=saving)
        own.fit(Module(nets[-1]), batches(), ckpt_path=path)
        assert penalty.strength == pytest.approx(0.1 - 0.1 / 27)
    assert_same(*nets)


def test_cost_and_lambda_are_logged() -> None:
    net, budget = made()
    own = trainer(BudgetCallback(budget))
    own.fit(Module(net), batches())
    assert own.logged_metrics["budget/macs"] == 0.5
    assert own.logged_metrics["budget/lambda"] == 0


def test_a_trial_of_one_batch_is_allowed() -> None:
    net, budget = made()
    trainer(BudgetCallback(budget), fast_dev_run=True).fit(Module(net), batches())
    assert budget.state_dict()["step"] == 1


def test_the_best_is_one_of_the_small_networks(tmp_path: Path) -> None:
    class Worse(Module):
        """Its figure is best in the first epoch, when the network is large."""

        def on_train_epoch_end(self) -> None:
            self.log("figure", float(self.current_epoch))

    net, budget = made()
    keep = ModelCheckpoint(tmp_path, monitor="figure", mode="min")
    own = trainer(BudgetCallback(budget), keep, enable_checkpointing=True)
    own.fit(Worse(net), batches())
    assert "epoch=1" in keep.best_model_path
    assert own.test(Worse(net), batches(), ckpt_path="best", verbose=False)[0]["loss"] < 1


def test_a_run_that_stops_early_is_told() -> None:
    class Stops(Module):
        def on_train_epoch_end(self) -> None:
            self.trainer.should_stop = True

    net, budget = made()
    with pytest.warns(SparsityWarning, match=f"after 8 of the {STEPS} steps .*, before the model became small"):
        trainer(BudgetCallback(budget)).fit(Stops(net), batches())


def test_mistakes_are_said(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"give a ds.Budget or a ds.Penalty, got 0.5"):
        BudgetCallback(0.5)
    net, budget = made()
    with pytest.raises(SparsityError, match="is not a part of this LightningModule"):
        trainer(BudgetCallback(budget)).fit(Module(Net()), batches())
    with pytest.raises(SparsityError, match="EMAWeightAveraging holds weights of the large network"):
        trainer(BudgetCallback(budget), EMAWeightAveraging()).fit(Module(net), batches())
    with pytest.raises(SparsityError, match=rf"the run has 8 steps.*at step {STEPS // 2} only; make it with steps=8"):
        trainer(BudgetCallback(budget), max_epochs=1).fit(Module(net), batches())
    with pytest.raises(SparsityError, match="use 'ddp'"):
        _check_setting(trainer(strategy="ddp_fork", devices=1))
