"""`AcceleratedBudget`: a budget or a penalty beside an `Accelerator`."""

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsparse.budget import Budget
from diffsparse.errors import SparsityError, import_extra
from diffsparse.integrations.joining import (
    as_regulariser,
    read_state,
    renew,
    require_joinable,
    warn_of_early_end,
    write_state,
)
from diffsparse.penalties import Penalty

import_extra("accelerate", "AcceleratedBudget needs Accelerate", "accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402

_SHARDED = {DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM}


class AcceleratedBudget:
    """A budget that knows the accelerator: when gradients are complete, what DDP wraps, where checkpoints are.

    `accelerator.save_state` and `load_state` save and load the budget, too, before and after the model became small.
    If a model is small in the checkpoint, it becomes small first, and the optimisers with it.
    `accelerator.end_training` warns if the run had fewer steps than the budget was made for.

    Args:
        accelerator: the one that will prepare model and optimisers; this notes the wrapper that it makes.
        budget: a `ds.Budget`, or a `ds.Penalty`; call `step()` of a penalty yourself, after each epoch.

    Example:
        >>> import torch, diffsparse as ds
        >>> net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
        >>> accelerator, x = Accelerator(cpu=True), torch.randn(16, 8)
        >>> budget = ds.Budget(ds.sparsify(net, start=1.0), x[:2], macs=0.5, steps=4)
        >>> budget = AcceleratedBudget(accelerator, budget)
        >>> model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        >>> for _ in range(4):
        ...     loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()) + budget.penalty()
        ...     accelerator.backward(loss)
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     _ = budget.step()
        >>> net[0].out_features
        16
    """

    def __init__(self, accelerator: Accelerator, budget: Budget | Penalty) -> None:
        self.accelerator, self.budget = accelerator, require_joinable(budget)
        if accelerator.distributed_type in _SHARDED:
            kind = accelerator.distributed_type.value
            raise SparsityError(f"AcceleratedBudget works on one device and with DDP, not with {kind}")
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        self._prepared: list[nn.Module] = []
        prepare: Callable[..., nn.Module] = accelerator.prepare_model

        def prepare_model(*args: Any, **kwargs: Any) -> nn.Module:
            self._prepared.append(prepare(*args, **kwargs))
            return self._prepared[-1]

        accelerator.prepare_model = prepare_model
        end: Callable[[], None] = accelerator.end_training

        def end_training() -> None:
            warn_of_early_end(budget)
            end()

        accelerator.end_training = end_training

    def penalty(self) -> Tensor:
        """The term to add to the loss of each batch, also where gradients are accumulated over several."""
        return self.budget() if isinstance(self.budget, Penalty) else self.budget.penalty()

    def step(self) -> bool:
        """Look and steer, if the optimiser has just made a step; True if model and optimisers have become small.

        Call it after `optimizer.step()` and `optimizer.zero_grad()`, inside or after `accelerator.accumulate`.
        """
        if not self.accelerator.sync_gradients:
            return False
        shrunk = as_regulariser(self.budget, self.accelerator._optimizers).step_done()
        if shrunk:
            self._renew()
        return shrunk

    def _renew(self) -> None:
        wrappers = [module for model in self._prepared for module in model.modules()]
        if self.accelerator.num_processes > 1 and not any(isinstance(w, DistributedDataParallel) for w in wrappers):
            raise SparsityError("make the AcceleratedBudget before accelerator.prepare, which wraps the model in DDP")
        for model in self._prepared:
            renew(model)

    def _save(self, models: list[nn.Module], weights: list[Any], folder: str) -> None:
        if self.accelerator.is_main_process:
            write_state(self.budget, folder)

    def _load(self, models: list[nn.Module], folder: str | os.PathLike[str]) -> None:
        state = read_state(folder)
        if state is None:
            raise SparsityError(f"'{os.fspath(folder)}' has no state of a budget; was it saved without one?")
        regulariser = as_regulariser(self.budget, self.accelerator._optimizers)
        if regulariser.before_restoring(state):
            self._renew()
        regulariser.load_state_dict(state)

    def __repr__(self) -> str:
        return f"AcceleratedBudget({self.budget!r})"
