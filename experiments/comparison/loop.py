"""The loop that all methods share: SGD with momentum, one cosine (or a new one after the cut), one thread."""

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from comparison.setting import Images, Setting

RATE = 0.1
WARMUP_EPOCHS = 0.5


class Training:
    """A network in training; `copy.deepcopy` of it goes on exactly as the original would."""

    def __init__(self, model: nn.Module, images: Images, setting: Setting, seed: int) -> None:
        self.model = model
        self.images, self.total = images, setting.epochs * images.steps
        self.draw = torch.Generator().manual_seed(seed + 1)
        self.done, self.seconds, self.curve = 0, 0.0, list[float]()
        self.begin, self.end = 0, self.total
        """First and last step of the current cosine."""
        self.new_optimizer()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Training":
        new = object.__new__(Training)
        memo[id(self.images)] = self.images
        vars(new).update(copy.deepcopy({k: v for k, v in vars(self).items() if k not in ("draw", "images")}, memo))
        new.images, new.draw = self.images, torch.Generator()
        new.draw.set_state(self.draw.get_state())
        return new

    def new_optimizer(self) -> None:
        """Fresh SGD over the model, for example after a cut."""
        groups = ds.parameter_groups(self.model, weight_decay=1e-4)
        self.optimizer = torch.optim.SGD(groups, lr=RATE, momentum=0.9, nesterov=True)

    def until(
        self,
        step: int,
        *,
        loss: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        term: Callable[[], Tensor] | None = None,
        after_backward: Callable[[], None] | None = None,
        after_step: Callable[[], Any] | None = None,
    ) -> None:
        """Train until so many steps are done."""
        self.model.train()
        while self.done < step:
            # the rest of an epoch that was interrupted by a cut is drawn again from the saved state
            start = self.draw.get_state()
            batches = self.images.epoch(self.draw)
            for _ in range(self.done % self.images.steps):
                next(batches)
            for x, y in batches:
                self._step(x, y, loss, term, after_backward, after_step)
                if self.done == step:
                    break
            if self.done % self.images.steps:
                self.draw.set_state(start)
            else:
                self.curve.append(self.accuracy())

    def _step(self, x: Tensor, y: Tensor, loss: Any, term: Any, after_backward: Any, after_step: Any) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        began = time.process_time()
        outputs = self.model(x)
        total = F.cross_entropy(outputs, y) if loss is None else loss(outputs, x, y)
        if term is not None:
            total = total + term()
        self.optimizer.zero_grad()
        total.backward()
        if after_backward is not None:
            after_backward()
        self.optimizer.step()
        self.done += 1
        if after_step is not None:
            after_step()
        self.seconds += time.process_time() - began

    def _rate(self) -> float:
        passed = self.done - self.begin
        warm = min(1.0, (passed + 1) / (WARMUP_EPOCHS * self.images.steps))
        return RATE * warm * 0.5 * (1 + math.cos(math.pi * passed / (self.end - self.begin)))

    @torch.no_grad()
    def accuracy(self) -> float:
        """Share of test images that are classified right."""
        self.model.eval()
        parts = zip(self.images.test.split(500), self.images.test_labels.split(500), strict=True)
        right = sum(int((self.model(x).argmax(1) == y).sum()) for x, y in parts)
        self.model.train()
        return right / len(self.images.test_labels)
