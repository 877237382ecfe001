"""The training loop."""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsparse.averaging import MovingAverage
from diffsparse.checkpoint import load, save
from diffsparse.data.dataset import WHOLE, Share
from diffsparse.module_tree import uncompiled
from diffsparse.training.advice import early_advice
from diffsparse.training.context import Phase, RunContext
from diffsparse.training.evaluate import DivergenceError, evaluate, find_divergence, non_finite_parameter
from diffsparse.training.optimizer import LearningRate, adopt_layout, make_optimizer
from diffsparse.training.seeds import seed_generators, step_seed
from diffsparse.training.snapshot import Progress, Snapshot, Trained

CHECK_EVERY = 20
"""Steps between looks at the loss and, with several processes, at signals; each look waits for the device."""
LOOKS_PER_EPOCH = 50
"""How often the strength controller is told the share of zeros."""
STEPS_PER_CALIBRATION = 20
"""Training steps for each batch that measures the statistics of an averaged network,"""
LEAST_CALIBRATION = 10
"""which are at least this many."""
EXPLODED = 1e4
"""A mean loss this many times that of the first steps counts as exploded."""


class StoppedError(Exception):
    """A signal asked the run to end; a checkpoint was written."""

    def __init__(self, number: int | None) -> None:
        super().__init__("stopped by a signal")
        # with several processes, another one may have got it
        self.signal = signal.SIGTERM if number is None else signal.Signals(number)


class Trainer:
    """Trains the model of one phase; `run()` returns it, or its moving average."""

    def __init__(self, phase: Phase, context: RunContext) -> None:
        self.phase, self.context, self.model, self.processes = phase, context, phase.model, context.processes
        recipe, self.settings = context.recipe, context.recipe.optimisation
        self.steps = context.steps
        self.rate = LearningRate(settings=self.settings, epochs=phase.epochs, steps=self.steps)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.regulariser = phase.method.regulariser(self.model, self.optimizer)
        keeps_zeros = self.regulariser is not None and self.regulariser.keeps_zeros
        self.controller = phase.method.controller(phase.sparsifying, phase.epochs, keeps_zeros=keeps_zeros)
        self.average = None if self.settings.ema is None else MovingAverage(self.model, self.settings.ema)
        device, precision = self.processes.device.type, recipe.hardware.precision
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "float16")
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if precision != "float32":
            self._autocast = partial(torch.autocast, device, dtype=getattr(torch, precision))
        self._wrap()
        self.progress = Progress()
        self._losses: list[Tensor] = []
        self._loss = torch.zeros(())
        self._best = context.folder.path / f"{phase.name}-best.safetensors"

    @property
    def result(self) -> nn.Module:
        """What is tested and kept."""
        return self.model if self.average is None else self.average.model

    def _wrap(self) -> None:
        """Make what holds the parameters of the model: the form that runs, and what checkpoints are taken of."""
        self.forward = self.processes.together(self.model)
        if self.context.recipe.hardware.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]
        self._state = Trained(model=self.model, optimizer=self.optimizer, scaler=self.scaler, average=self.average)

    def _take_small_model(self) -> None:
        """Go on with a model and an optimiser that have become small in place."""
        self.context.synchronised(self.context.lay_out(self.model))
        adopt_layout(self.optimizer)
        self._wrap()

    def restore(self, snapshot: Snapshot) -> None:
        """Go on where `snapshot` was taken."""
        if self.regulariser is not None and self.regulariser.before_restoring(snapshot.progress.regulariser):
            self._take_small_model()
            if self.average is not None:
                self.average = MovingAverage(self.model, self.average.decay)
                self._wrap()
        snapshot.restore(self._state)
        self.progress = snapshot.progress
        self.controller.load_state_dict(self.progress.controller)
        if self.regulariser is not None:
            self.regulariser.load_state_dict(self.progress.regulariser)

    def run(self) -> nn.Module:
        """Train to the end; raises StoppedError after a signal and DivergenceError if training diverges."""
        progress, watcher, phase = self.progress, self.context.watcher, self.phase
        done = progress.epoch * self.steps + progress.step
        watcher.phase_began(phase.name, epochs=phase.epochs, steps=self.steps, done=done, unit=self.context.data.unit)
        try:
            while progress.epoch < self.phase.epochs:
                self._epoch()
        finally:
            # the wrapper of DDP holds the group of processes, which ends before the traceback of an error does
            self.forward = self.model
        watcher.phase_over()
        if progress.best is None:
            return self.result
        self.processes.wait()
        return load(self._best, self.result)

    def _epoch(self) -> None:
        progress, device = self.progress, self.processes.device
        self.model.train()
        sums = torch.tensor(progress.sums, dtype=torch.double, device=device) if progress.sums else None
        began = time.perf_counter()
        with closing(self._batches(self.processes.share)) as batches:
            for inputs, targets in batches:
                added = self._step(self.context.placed(inputs), targets.to(device, non_blocking=True))
                sums = added if sums is None else sums + added
                progress.step += 1
                self.context.watcher.step_done(self._loss, self.context.recipe.batch_size)
                look = self.processes.world == 1 or progress.step % CHECK_EVERY == 0
                if look and progress.step < self.steps and self._interrupted():
                    progress.sums = sums.tolist()
                    progress.seconds += time.perf_counter() - began
                    self._check_weights()
                    self._snapshot()
                    raise StoppedError(self.context.interrupt.signal)
        assert sums is not None, "an epoch has at least one step"
        progress.seconds += time.perf_counter() - began
        self._close_epoch(sums)

    def _batches(self, share: Share) -> Generator[tuple[Tensor, Tensor], None, None]:
        """The rest of the current epoch; closing it closes the iterator of the data as well."""
        recipe, epoch, skip = self.context.recipe, self.progress.epoch, self.progress.step
        shuffled = self.context.data.train.shuffled
        yield from shuffled(recipe.batch_size, seed=recipe.seed, epoch=epoch, share=share, skip=skip)

    def _step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One update of the weights; returns the `objective.sums` of the batch."""
        position = self.progress.epoch * self.steps + self.progress.step
        # randomness inside the model (dropout) follows from the position, as the data does: nothing to keep or restore
        seed_generators(self.processes.device, step_seed(self.context.recipe.seed, position, self.processes.rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate.at(position) * (self.settings.gate_rate if group["name"] == "gates" else 1.0)
        self._set_strength(position / self.steps)
        pieces = self.settings.accumulate
        parts = list(zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True))
        sums = [self._backward(*part, len(parts), last=index == len(parts) - 1) for index, part in enumerate(parts)]
        if self._looks():
            # before the update, which would spread what is wrong over all weights
            self._check_loss(inputs)
        if self.settings.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.model)
        self._look_at_zeros()
        if self.regulariser is not None and self.regulariser.step_done():
            if self.average is not None:
                self.regulariser.let_follow(self.average)
            self._take_small_model()
            self.progress.shrunk.append((position + 1) / self.steps)
        return sums[0] if pieces == 1 else torch.stack(sums).sum(0)

    def _backward(self, inputs: Tensor, targets: Tensor, pieces: int, *, last: bool) -> Tensor:
        wrapper = uncompiled(self.forward)
        unsynced = wrapper.no_sync() if not last and isinstance(wrapper, DistributedDataParallel) else nullcontext()
        with unsynced:
            with self._autocast():
                outputs = self.forward(inputs)
                loss = self.phase.objective.loss(outputs, inputs, targets) / pieces
            self._loss = pieces * loss.detach()
            self._losses.append(self._loss)
            if last and self.regulariser is not None and (term := self.regulariser()) is not None:
                loss = loss + term
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return self.phase.objective.sums(outputs.detach(), targets)

    def _set_strength(self, epoch: float) -> None:
        if self.regulariser is None:
            return
        self.controller.observe(epoch)
        if self.controller.over and not self.regulariser.settled:
            self.regulariser.settle()
        self.regulariser.strength = 0.0 if self.regulariser.settled else self.controller.strength

    def _look_at_zeros(self) -> None:
        if self.regulariser is None or self.regulariser.settled or not self.controller.steers:
            return
        step, every = self.progress.step + 1, max(1, self.steps // LOOKS_PER_EPOCH)
        if step % every == 0:
            zeros = self.phase.method.zeros(self.model).fraction
            self.controller.observe(self.progress.epoch + step / self.steps, zeros, passed=every / self.steps)

    def _interrupted(self) -> bool:
        return self.processes.any_rank(self.context.interrupt.signal is not None)

    def _looks(self) -> bool:
        """Whether this step looks at the loss: always if that costs no waiting."""
        step = self.progress.step + 1
        free = self.processes.world == 1 and self.processes.device.type == "cpu"
        return free or step % CHECK_EVERY == 0 or step == self.steps

    def _check_loss(self, inputs: Tensor) -> None:
        loss, first = float(torch.stack(self._losses).mean()), self.progress.first_loss
        self._losses.clear()
        wrong = not loss < float("inf") or (first is not None and loss > EXPLODED * (first + 1))
        if self.processes.any_rank(wrong):
            where = find_divergence(self.model, inputs)
            raise self._diverged(f"the loss is {loss:.4g}", self.progress.step + 1, where)
        if first is None:
            self.progress.first_loss = loss

    def _check_weights(self) -> None:
        """A checkpoint with NaN or infinity would be no good to go on from."""
        if (name := non_finite_parameter(self.model)) is not None:
            where = f"parameter '{name}' is not finite"
            raise self._diverged("the weights are no longer finite", self.progress.step, where)

    def _diverged(self, problem: str, step: int, where: str) -> DivergenceError:
        return DivergenceError(
            f"{problem} in epoch {self.progress.epoch + 1}, step {step}: {where}; "
            f"{self.context.folder.last_good()}. A smaller learning rate, a warm-up or clip may help"
        )

    def _close_epoch(self, sums: Tensor) -> None:
        progress, method, objective = self.progress, self.phase.method, self.phase.objective
        self._check_weights()
        self.processes.share_buffers(self.model)
        progress.epoch, progress.step, progress.sums = progress.epoch + 1, 0, []
        self._calibrate()
        record: dict[str, Any] = {"phase": self.phase.name, "epoch": progress.epoch}
        record |= {f"train_{name}": value for name, value in objective.figures(self.processes.added(sums)).items()}
        for name, part in {"validation": self.context.data.validation, "test": self.context.data.test}.items():
            if part is not None:
                scores = evaluate(self.result, part, objective, self.context.recipe.batch_size, self.processes)
                record |= {f"{name}_{key}": value for key, value in scores.items()}
        record["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        record["zeros"] = method.zeros(self.result).fraction
        self._keep_best(record)
        record |= method.figures(self.result)
        if self.regulariser is not None and not method.shrinks:
            record["strength"] = self.regulariser.strength
        if self.processes.first and objective.shows_macs:
            record["macs"] = method.live_macs(self.result, self.context.example())
        if self.processes.first and self.context.log.board is not None:
            record["widths"] = method.live_widths(self.result, self.context.example())
        if progress.shrunk:
            record["shrunk"], progress.shrunk = progress.shrunk, []
        record["seconds"] = progress.seconds
        if self.processes.first:
            self.context.log.add(record)
        self._snapshot()
        self.context.watcher.epoch_done(record)
        if self.processes.first:
            for words in early_advice(self.phase, self.context.pace, self.context.steps, self.context.log.records()):
                self.context.watcher.say(words)
        if progress.epoch < self.phase.epochs and self._interrupted():
            raise StoppedError(self.context.interrupt.signal)

    def _calibrate(self) -> None:
        """Measure the statistics of the averaged network; each process uses the same batches and gets the same."""
        if self.average is None:
            return
        position = self.progress.epoch * self.steps
        seed_generators(self.processes.device, step_seed(self.context.recipe.seed, position, 0))
        count = min(self.steps, max(LEAST_CALIBRATION, self.steps // STEPS_PER_CALIBRATION))
        with closing(self._batches(WHOLE)) as batches:
            self.average.calibrate((self.context.placed(inputs) for inputs, _ in batches), count)

    def _keep_best(self, record: dict[str, Any]) -> None:
        """With a validation part, keep the model that does best on it, of those that have the zeros aimed at."""
        objective = self.phase.objective
        value = record.get(f"validation_{objective.headline}")
        made = self.regulariser
        if value is None or (made is not None and not (made.reached and self.controller.reached(record["zeros"]))):
            return
        best = self.progress.best
        if best is None or (value > best if objective.higher_is_better else value < best):
            self.progress.best = value
            if self.processes.first:
                save(self.result, self._best)

    def _snapshot(self) -> None:
        progress = self.progress
        progress.controller = self.controller.state_dict()
        progress.regulariser = {} if self.regulariser is None else self.regulariser.state_dict()
        if self.processes.first:
            self.context.folder.write_snapshot(self._state, progress, self.phase.name, self.phase.number)
