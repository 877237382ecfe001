"""The loop of all rows: AdamW, warm-up and cosine, one thread."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from experiments.transformer_runs.data import Data
from experiments.transformer_runs.tasks import Task

WARMUP = 0.05
"""Share of the steps over which the learning rate rises."""
GATE_RATE = 5.0
"""Learning rate of gates as a multiple of that of weights."""
ALPHA, TEMPERATURE = 0.5, 2.0
"""Weight of the teacher, and its temperature."""


@dataclass
class Training:
    """A network in training for `steps` steps from now on."""

    model: nn.Module
    task: Task
    data: Data
    seed: int
    steps: int
    rate: float
    teacher: nn.Module | None = None
    gate_rate: float = GATE_RATE
    seconds: float = 0.0

    def __post_init__(self) -> None:
        groups = ds.parameter_groups(self.model, self.task.weight_decay, gate_lr=self.gate_rate * self.rate)
        self.optimizer = torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.99))
        for group in self.optimizer.param_groups:
            group["peak"] = group["lr"]

    def run(
        self, *, offset: int = 0, term: Callable[[], Tensor] | None = None, after_step: Callable[[], Any] | None = None
    ) -> None:
        """Train; `offset` counts the steps that the network has seen before, so that batches are new."""
        self.model.train()
        torch.manual_seed(self.seed)
        for step in range(self.steps):
            inputs, targets = self.data.batch(self.task.batch, self.seed, offset + step)
            began = time.process_time()
            for group in self.optimizer.param_groups:
                group["lr"] = group["peak"] * self._share(step)
            loss = self._loss(inputs, targets)
            if term is not None:
                loss = loss + term()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if after_step is not None:
                after_step()
            self.seconds += time.process_time() - began

    def _share(self, step: int) -> float:
        warm = max(1, round(WARMUP * self.steps))
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = self.model(inputs).flatten(0, -2)
        hard = F.cross_entropy(outputs, targets.flatten())
        if self.teacher is None:
            return hard
        with torch.no_grad():
            soft = F.log_softmax(self.teacher(inputs).flatten(0, -2) / TEMPERATURE, 1)
        own = F.log_softmax(outputs / TEMPERATURE, 1)
        return (1 - ALPHA) * hard + ALPHA * TEMPERATURE**2 * F.kl_div(own, soft, reduction="batchmean", log_target=True)


@torch.no_grad()
def tested(model: nn.Module, data: Data) -> dict[str, float]:
    """Loss in nats per target, and accuracy in percent, on the test part."""
    model.eval()
    loss, right = 0.0, 0
    for inputs, targets in zip(*(tensor.split(256) for tensor in data.test), strict=True):
        outputs, targets = model(inputs).flatten(0, -2), targets.flatten()
        loss += float(F.cross_entropy(outputs, targets, reduction="sum"))
        right += int((outputs.argmax(1) == targets).sum())
    count = data.test[1].numel()
    return {"loss": loss / count, "accuracy": 100 * right / count}
