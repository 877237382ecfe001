"""`BudgetCallback`: a budget or a penalty in a Lightning run."""

from collections.abc import Callable
from typing import Any

import torch

from diffsparse.budget import Budget
from diffsparse.errors import SparsityError, import_extra
from diffsparse.integrations.joining import (
    add_gradient,
    as_regulariser,
    become_as_small,
    begin_epoch,
    check_steps,
    figures,
    require_joinable,
    warn_of_early_end,
)
from diffsparse.penalties import Penalty, Regulariser

import_extra("lightning.pytorch", "BudgetCallback needs Lightning", "lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging, WeightAveraging  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy  # noqa: E402
from torch.optim import Optimizer  # noqa: E402


class BudgetCallback(Callback):
    """Steers a network to its budget in a Lightning run, and makes it small in place; `training_step` stays as it is.

    The gradient of the penalty is added once per step of the optimiser: after accumulation, the average over processes
    and unscaling, before `Trainer` clips. After each step the budget looks and steers. When it is due, the network and
    the optimisers become small, and DDP wraps the network anew. Cost and lambda are logged as `budget/macs`,
    `budget/params` and `budget/lambda`.

    The state of the budget is in Lightning's checkpoints. `fit(..., ckpt_path=...)` and `test(..., ckpt_path=...)` take
    checkpoints from before and after the network became small, if everything is built as before. When it becomes small,
    `ModelCheckpoint` forgets what was best: those files stay, and hold the large network.

    Args:
        budget: a `ds.Budget`, or a `ds.Penalty`, for a network inside the LightningModule. Make it before `fit`, with
            `steps` as many as the run has steps of the optimiser. The schedule of a penalty follows the epochs.

    Lightning takes one callback of this kind per run. With manual optimisation the gradient of the penalty comes after
    your own clipping, and a batch in which any optimiser steps is one step of the budget.

    Example:
        >>> import torch, diffsparse as ds
        >>> from torch import nn
        >>> class Classifier(LightningModule):
        ...     def __init__(self, net):
        ...         super().__init__()
        ...         self.net = net
        ...     def training_step(self, batch, _):
        ...         x, y = batch
        ...         return nn.functional.cross_entropy(self.net(x), y)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
        >>> budget = ds.Budget(ds.sparsify(net, start=1.0), torch.randn(2, 8), macs=0.5, steps=8)
        >>> batches = torch.utils.data.DataLoader([(torch.randn(8), i % 2) for i in range(32)], batch_size=4)
        >>> loud = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        >>> quiet = dict.fromkeys(loud, False)
        >>> trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=[BudgetCallback(budget)], **quiet)
        >>> trainer.fit(Classifier(net), batches)
        >>> net[0].out_features
        16
    """

    def __init__(self, budget: Budget | Penalty) -> None:
        self.budget = require_joinable(budget)
        self._regulariser: Regulariser | None = None
        self._stepped = False
        self._resumed: dict[str, Any] | None = None
        self._weights: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        _check_setting(trainer)
        if isinstance(self.budget, Budget):
            if self.budget.model is pl_module:
                raise SparsityError("make the budget for the network inside the LightningModule, not for all of it")
            if not any(module is self.budget.model for module in pl_module.modules()):
                raise SparsityError("the model of the budget is not a part of this LightningModule")
        # of all hooks, only this one sees a checkpoint before the weights are loaded
        load: Callable[[dict[str, Any]], None] = type(pl_module).on_load_checkpoint.__get__(pl_module)

        def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
            load(checkpoint)
            self._take(checkpoint, pl_module, fitting=stage == "fit")

        pl_module.on_load_checkpoint = on_load_checkpoint

    def _take(self, checkpoint: dict[str, Any], pl_module: LightningModule, fitting: bool) -> None:
        """Make what `checkpoint` holds loadable: the network has the size that it had then, before weights come."""
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state is None:
            return
        if fitting:
            # the optimisers that become small with the network are made later; until then, it keeps what it has
            self._resumed, self._weights = state, checkpoint["state_dict"]
            checkpoint["state_dict"] = pl_module.state_dict()
        else:
            become_as_small(self.budget, state)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._regulariser = as_regulariser(self.budget, trainer.optimizers)
        if self._resumed is None or self._weights is None:
            return
        if self._regulariser.before_restoring(self._resumed):
            _wrap_anew(trainer)
        pl_module.load_state_dict(self._weights, strict=pl_module.strict_loading)
        self._regulariser.load_state_dict(self._resumed)
        self._resumed = self._weights = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # a trial of a few batches says nothing about the run
        if pl_module.automatic_optimization and not trainer.fast_dev_run:
            check_steps(self.budget, trainer.estimated_stepping_batches)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        assert self._regulariser is not None
        self._stepped = True
        # a fused optimiser divides by the scale itself, in its step
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = 1.0
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scale = scaler.get_scale()
        add_gradient(self._regulariser(), [optimizer], scale)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self._regulariser is not None
        if not self._stepped:
            return
        self._stepped = False
        if self._regulariser.step_done():
            _wrap_anew(trainer)
            _forget_best(trainer)
        pl_module.log_dict(figures(self.budget), on_step=True, on_epoch=False)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        begin_epoch(self.budget, trainer.current_epoch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:
            warn_of_early_end(self.budget, trainer.estimated_stepping_batches)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        vars(pl_module).pop("on_load_checkpoint", None)

    def state_dict(self) -> dict[str, Any]:
        return self.budget.state_dict()


def _check_setting(trainer: Trainer) -> None:
    """Raise for what cannot follow a network that becomes small."""
    strategy = trainer.strategy
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise SparsityError(f"BudgetCallback works on one device and with DDP, not with {type(strategy).__name__}")
    if isinstance(strategy, DDPStrategy) and strategy._start_method != "popen":
        raise SparsityError("DDP in processes that are forked or spawned leaves the small network there; use 'ddp'")
    for other in trainer.callbacks:
        if isinstance(other, WeightAveraging | StochasticWeightAveraging):
            words = f"{type(other).__name__} holds weights of the large network"
            raise SparsityError(f"{words}; average with ds.MovingAverage, which follows a network that becomes small")


def _forget_best(trainer: Trainer) -> None:
    """What was best before is a network of the old size; from now on, the best is one of the small ones."""
    for kept in trainer.checkpoint_callbacks:
        if isinstance(kept, ModelCheckpoint) and kept.monitor is not None:
            kept.best_k_models.clear()
            kept.best_model_path = kept.kth_best_model_path = ""
            kept.best_model_score = kept.current_score = None
            kept.kth_value = torch.tensor(torch.inf if kept.mode == "min" else -torch.inf)


def _wrap_anew(trainer: Trainer) -> None:
    """DDP holds parameters and buffers of the large network."""
    strategy = trainer.strategy
    if isinstance(strategy, DDPStrategy):
        strategy.model = strategy.lightning_module
        strategy.configure_ddp()
