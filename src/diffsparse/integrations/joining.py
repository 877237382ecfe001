"""What joins a budget or a penalty to a run that a framework drives."""

import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from diffsparse.budget import Budget
from diffsparse.budget.regulariser import BudgetPressure
from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.files import write_json
from diffsparse.penalties import Penalty, Regulariser

MOST = 0.9
"""A run with at least this share of its steps is whole."""
STATE_FILE = "diffsparse.json"
"""The file with the state of the budget in a checkpoint that is a folder."""


def require_joinable(given: Any) -> Budget | Penalty:
    """`given`; raises unless it is something that can go along with a run."""
    if not isinstance(given, Budget | Penalty):
        raise SparsityError(f"give a ds.Budget or a ds.Penalty, got {given!r:.50}")
    return given


def as_regulariser(given: Budget | Penalty, optimizers: Iterable[Optimizer]) -> Regulariser:
    """What was given, in one form, for the optimisers of the run."""
    return BudgetPressure(given, optimizers) if isinstance(given, Budget) else given


def add_gradient(term: Tensor | None, optimizers: Iterable[Optimizer], scale: float = 1.0) -> None:
    """Add the gradient of `term` to what `optimizers` hold, as if the loss had had the term in it.

    Called once per step of the optimiser, after the gradients of all batches were accumulated and averaged over
    processes, and before they are clipped. The term is the same for all batches and processes, so this is exact.

    Args:
        term: a scalar; None, or one that needs no gradients, adds nothing.
        optimizers: whose parameters get gradients.
        scale: by which gradients are multiplied now, where a gradient scaler has not yet divided them.

    Example:
        >>> weight = nn.Parameter(torch.tensor(3.0))
        >>> weight.grad = torch.tensor(1.0)
        >>> add_gradient(weight.square(), [torch.optim.SGD([weight])])
        >>> weight.grad
        tensor(7.)
    """
    if term is None or not term.requires_grad:
        return
    held = [p for one in optimizers for group in one.param_groups for p in group["params"] if p.requires_grad]
    for parameter, gradient in zip(held, torch.autograd.grad(scale * term, held, allow_unused=True), strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def figures(given: Budget | Penalty) -> dict[str, float]:
    """What to log: cost and lambda of the last look of a budget, lambda of a penalty."""
    if isinstance(given, Penalty):
        return {"penalty/lambda": given.strength}
    if not given.history:
        return {}
    look = given.history[-1]
    return {"budget/macs": look.macs, "budget/params": look.params, "budget/lambda": look.strength}


def begin_epoch(given: Budget | Penalty, epoch: int) -> None:
    """The schedule of a penalty follows the position of the run, so it is right after a restart, too."""
    if isinstance(given, Penalty):
        given.controller.observe(float(epoch))


def check_steps(given: Budget | Penalty, planned: float) -> None:
    """Warn if a budget was made for another number of steps than the run has; raise if it would never be due."""
    if not isinstance(given, Budget) or planned == given.steps or not 0 < planned < float("inf"):
        return
    words = f"the run has {planned:.0f} steps of the optimiser, but the budget was made for {given.steps}"
    advice = f"make it with steps={planned:.0f}"
    if planned < given.due:
        raise SparsityError(f"{words}, and the model would become small at step {given.due} only; {advice}")
    warnings.warn(f"{words}; {advice}", SparsityWarning, stacklevel=3)


def warn_of_early_end(given: Budget | Penalty, planned: float = float("inf")) -> None:
    """At the end of a run: warn if it had fewer steps than its budget was made for, as after early stopping.

    A run that was `planned` to have fewer was warned of at its beginning.
    """
    if not isinstance(given, Budget) or (done := given.state_dict()["step"]) >= MOST * min(given.steps, planned):
        return
    words = f"the run ends after {done} of the {given.steps} steps that its budget was made for"
    what = "with few left for the small model to recover" if given.finished else "before the model became small"
    warnings.warn(f"{words}, {what}", SparsityWarning, stacklevel=3)


def is_as_small(given: Budget | Penalty, state: dict[str, Any]) -> bool:
    """Whether the model of `given` has become small in the way it was when `state` was taken, or is as large."""
    return isinstance(given, Penalty) or given.state_dict()["plans"] == state.get("plans")


def become_as_small(given: Budget | Penalty, state: dict[str, Any]) -> None:
    """Make the model as small as it was when `state` was taken, so that its weights of then can be tested."""
    if is_as_small(given, state):
        return
    if given.state_dict()["step"]:
        words = "this checkpoint holds the network at another size than it has now"
        raise SparsityError(f"{words}; load it into a network and a budget that are built anew")
    as_regulariser(given, ()).before_restoring(state)


def renew(model: nn.Module) -> None:
    """Make DistributedDataParallel around a model that has become small fit what is inside; nothing without one.

    It stays the same object, with its options and hooks, and does what unpickling it does.
    """
    for wrapper in [module for module in model.modules() if isinstance(module, DistributedDataParallel)]:
        hooks = list(getattr(wrapper, "_comm_hooks", ()))
        wrapper.__setstate__(wrapper.__getstate__())  # type: ignore[no-untyped-call]
        parameters = list(wrapper.module.parameters())
        fresh = {"_comm_hooks": [], "_has_rebuilt_buckets": False, "_module_parameters": parameters}
        vars(wrapper).update({key: value for key, value in fresh.items() if key in vars(wrapper)})
        for hook, state in hooks:
            wrapper.register_comm_hook(state, hook)


def write_state(given: Budget | Penalty, folder: str | os.PathLike[str]) -> None:
    """Write the state into the folder of a checkpoint."""
    write_json(Path(folder) / STATE_FILE, given.state_dict())


def read_state(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The state in the folder of a checkpoint; None if there is none."""
    path = Path(folder) / STATE_FILE
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise SparsityError(f"'{path}' cannot be read: {error}") from error
    return state
