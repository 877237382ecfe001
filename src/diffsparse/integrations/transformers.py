"""`BudgetTrainer` and `BudgetMixin`: a budget or a penalty in a run of the Trainer of transformers."""

import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.budget import Budget
from diffsparse.compaction.apply import plan_of
from diffsparse.errors import SparsityError, SparsityWarning, import_extra
from diffsparse.gates import named_gates
from diffsparse.integrations.joining import (
    add_gradient,
    as_regulariser,
    begin_epoch,
    check_steps,
    figures,
    read_state,
    renew,
    require_joinable,
    warn_of_early_end,
    write_state,
)
from diffsparse.penalties import Penalty

import_extra("accelerate", "the Trainer of transformers needs Accelerate", "transformers accelerate")
import_extra("transformers", "BudgetTrainer needs transformers", "transformers accelerate")

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # noqa: E402


class BudgetCallback(TrainerCallback):
    """Steers after each step of the optimiser; made by `BudgetMixin`, which does what a callback cannot."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        check_steps(self.trainer.budget, state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if as_regulariser(self.trainer.budget, [self.trainer.optimizer]).step_done():
            renew(self.trainer.model_wrapped)
            self.trainer.warn_of_save_pretrained()
            # what was best before is a network of another size
            state.best_metric = state.best_model_checkpoint = state.best_global_step = None

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        begin_epoch(self.trainer.budget, int(state.epoch or 0))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        warn_of_early_end(self.trainer.budget, state.max_steps)


class SaveWithWarning:
    """Stands for `save_pretrained` of a compact model, whose configuration does not tell its sizes."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            "this model is compact: from_pretrained cannot load what save_pretrained writes, because the configuration "
            "has the sizes of the large one. Use ds.save(budget.small, path), then ds.load(path, Model(config))",
            SparsityWarning,
            stacklevel=2,
        )
        return type(self.model).save_pretrained(self.model, *args, **kwargs)


class BudgetMixin(Trainer if TYPE_CHECKING else object):  # type: ignore[misc]
    """What a Trainer needs to take a budget: `class MyTrainer(BudgetMixin, Seq2SeqTrainer): ...`.

    The gradient of the penalty is added once per step of the optimiser: after accumulation and the average over
    processes, before clipping. After each step the budget looks and steers. When it is due, model and optimiser become
    small in place, and DDP wraps the model anew. Gates get no weight decay. Cost and lambda are logged with the loss.

    The state of the budget is in the Trainer's checkpoints. `train(resume_from_checkpoint=...)` takes those from before
    and after the model became small, if everything is built as before.

    Args:
        budget: a `ds.Budget`, or a `ds.Penalty`, for the model or a part of it, with `steps` as many as the run has
            steps of the optimiser. The schedule of a penalty follows the epochs.
    """

    def __init__(self, *args: Any, budget: Budget | Penalty, **kwargs: Any) -> None:
        self.budget = require_joinable(budget)
        self._to_restore: tuple[str, dict[str, Any]] | None = None
        super().__init__(*args, **kwargs)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise SparsityError("BudgetTrainer works on one device and with DDP, not with FSDP or DeepSpeed")
        if self.args.auto_find_batch_size:
            raise SparsityError("auto_find_batch_size starts a run anew, and a budget cannot; choose a batch size")
        if isinstance(budget, Budget) and not any(module is budget.model for module in self.model.modules()):
            raise SparsityError("the model of the budget is not a part of the Trainer's model")
        self.add_callback(BudgetCallback(self))

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            scaler = self.accelerator.scaler
            term = as_regulariser(self.budget, ())()
            add_gradient(term, [self.optimizer], 1.0 if scaler is None else scaler.get_scale())
        return loss

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        gates = {id(parameter) for _, gate in named_gates(model) for parameter in gate.parameters()}
        names = {name for name, parameter in model.named_parameters() if id(parameter) not in gates}
        return [name for name in super().get_decay_parameter_names(model) if name in names]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs | figures(self.budget) if "loss" in logs else logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with warnings.catch_warnings():
            if _internal_call:
                # a checkpoint, which has what is needed to load it again
                warnings.simplefilter("ignore", SparsityWarning)
            super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            write_state(self.budget, output_dir or self.args.output_dir)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # layers that compete have one gate, and transformers does not save tensors that it does not know as tied
        state = self.model.state_dict() if state_dict is None else state_dict
        again = self._shared_gates()
        super()._save(output_dir, {name: tensor for name, tensor in state.items() if name not in again})

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        again = self._shared_gates()
        missing = [name for name in load_result.missing_keys if name not in again]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _shared_gates(self) -> set[str]:
        """Names of gate parameters that have another name before."""
        first = dict(self.model.named_parameters())
        gates = {id(parameter) for _, gate in named_gates(self.model) for parameter in gate.parameters()}
        named = self.model.named_parameters(remove_duplicate=False)
        return {name for name, parameter in named if id(parameter) in gates and name not in first}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        state = read_state(resume_from_checkpoint)
        if state is None:
            raise SparsityError(f"'{resume_from_checkpoint}' has no state of a budget; was it saved without one?")
        # weights fit once the model is small, and it becomes small with its optimiser
        self._to_restore = resume_from_checkpoint, state

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        if self._to_restore is not None:
            (folder, state), self._to_restore = self._to_restore, None
            regulariser = as_regulariser(self.budget, [optimizer])
            regulariser.before_restoring(state)
            super()._load_from_checkpoint(folder)
            regulariser.load_state_dict(state)
            self.warn_of_save_pretrained()
        return optimizer

    def warn_of_save_pretrained(self) -> None:
        """From now on `save_pretrained` of the model warns, if it is compact."""
        if plan_of(self.model) is not None and hasattr(type(self.model), "save_pretrained"):
            self.model.save_pretrained = SaveWithWarning(self.model)


class BudgetTrainer(BudgetMixin, Trainer):
    """`transformers.Trainer` with the keyword `budget`, as `BudgetMixin` describes it.

    Example:
        >>> import tempfile, torch, diffsparse as ds
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.norm, self.last = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 2)
        ...     def forward(self, x, labels=None):
        ...         logits = self.last(self.norm(self.first(x)).relu())
        ...         loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        ...         return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}
        >>> net = ds.sparsify(Net(), start=1.0)
        >>> budget = ds.Budget(net, {"x": torch.randn(2, 8)}, macs=0.5, steps=8)
        >>> data = [{"x": torch.randn(8), "labels": i % 2} for i in range(32)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = TrainingArguments(folder, max_steps=8, report_to="none", use_cpu=True, disable_tqdm=True)
        ...     args.logging_strategy = "no"
        ...     _ = BudgetTrainer(net, args, train_dataset=data, budget=budget).train()  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        >>> net.first.out_features
        16
    """
