"""The rows of the table: how each of them trains its network."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import diffsparse as ds
from experiments.transformer_runs.cuts import by_magnitude, head_size
from experiments.transformer_runs.loop import Training
from experiments.transformer_runs.tasks import TASKS

SAMPLES = 32
"""Training inputs that gates are placed by."""


@dataclass
class Bench:
    """One task with its data; `folder` keeps the trained plain networks."""

    name: str
    root: Path
    folder: Path

    def __post_init__(self) -> None:
        self.task = TASKS[self.name]
        self.data = self.task.data(self.root)
        self.sample = self.data.example(SAMPLES)
        self.example = self.sample[:1]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.whole = ds.measure(self.fresh(0), self.example, latency=False)

    def fresh(self, seed: int, factor: float = 1.0) -> nn.Module:
        """A new network."""
        torch.manual_seed(seed)
        return self.task.network(multiplier=factor * self.task.multiplier)

    def training(self, model: nn.Module, seed: int, steps: int | None = None, **options: Any) -> Training:
        """A training from scratch, unless told otherwise."""
        settings = {"rate": self.task.rate} | options
        return Training(model, self.task, self.data, seed, steps or self.task.steps, **settings)

    def trained(self, seed: int) -> nn.Module:
        """The plain network after its training, made if it is not there."""
        path, model = self.folder / f"plain-{seed}.weights", self.fresh(seed)
        if not path.exists():
            self.training(model, seed).run()
            torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path))
        return model


Outcome = tuple[Training, dict[str, Any]]
Row = Callable[[Bench, float, int], Outcome]


def plain(bench: Bench, budget: float, seed: int) -> Outcome:
    """The whole network."""
    training = bench.training(bench.fresh(seed), seed)
    training.run()
    torch.save(training.model.state_dict(), bench.folder / f"plain-{seed}.weights")
    return training, {}


def plain_longer(bench: Bench, budget: float, seed: int) -> Outcome:
    """The whole network, trained and tuned as the small ones are."""
    task = bench.task
    training = bench.training(bench.trained(seed), seed, task.tuning, rate=task.tuning_rate)
    training.run(offset=task.steps)
    return training, {}


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Gates and a budget."""

    trained: bool
    """Whether they go into the trained network, and not into a fresh one."""
    share: float = 1.0
    """Steps, as a share of those of the other rows."""
    distilled: bool = False
    """Whether the trained network teaches the one that becomes small."""
    gating: dict[str, Any] = field(default_factory=dict)
    """Options of `sparsify`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the budget."""
    training: dict[str, Any] = field(default_factory=dict)
    """Options of the training."""

    def __call__(self, bench: Bench, budget: float, seed: int) -> Outcome:
        task = bench.task
        model = bench.trained(seed) if self.trained else bench.fresh(seed)
        teacher = copy.deepcopy(model).eval() if self.distilled else None
        steps = round(self.share * (task.tuning if self.trained else task.steps))
        usual = {} if self.trained else {"compete": "layer", "start": 1.0}
        model = ds.sparsify(model, bench.sample, **usual | self.gating)
        settings = {"rate": task.tuning_rate if self.trained else task.rate} | self.training
        training = bench.training(model, seed, steps, teacher=teacher, **settings)
        aim = ds.Budget(model, bench.example, macs=budget, steps=steps, **self.options)
        offset = task.steps if self.trained else 0
        training.run(offset=offset, term=aim.penalty, after_step=lambda: aim.step(training.optimizer))
        looks = [(look.step, round(look.macs, 4), look.alive) for look in aim.history]
        return training, {"looks": looks[:: max(1, len(looks) // 20)]}


@dataclass(frozen=True)
class Cut:
    """Cut the trained network, then tune it."""

    share: float = 1.0
    """Steps, as a share of those of the other rows."""
    distilled: bool = False
    cut: Callable[[nn.Module, Tensor, float], nn.Module] = by_magnitude

    def __call__(self, bench: Bench, budget: float, seed: int) -> Outcome:
        task, whole = bench.task, bench.trained(seed)
        small = self.cut(whole, bench.example, budget)
        teacher = whole.eval() if self.distilled else None
        steps = round(self.share * task.tuning)
        training = bench.training(small, seed, steps, rate=task.tuning_rate, teacher=teacher)
        training.run(offset=task.steps)
        return training, {}


@dataclass(frozen=True)
class Uniform:
    """All widths smaller by one factor, from scratch."""

    equal_cost: bool = False
    """Whether it trains for as many MACs as the trained network and its tuning take together."""

    def __call__(self, bench: Bench, budget: float, seed: int) -> Outcome:
        whole = head_size(bench.fresh(0))
        sizes = [size / whole for size in range(1, whole + 1)]
        fits = [factor for factor in sizes if self._macs(bench, factor) <= budget * bench.whole.macs]
        model = bench.fresh(seed, max(fits))
        own = self._macs(bench, max(fits)) / bench.whole.macs
        steps = bench.task.steps
        if self.equal_cost:
            steps = round((steps + bench.task.tuning * budget) / own)
        training = bench.training(model, seed, steps)
        training.run()
        return training, {"steps": steps}

    def _macs(self, bench: Bench, factor: float) -> float:
        return ds.measure(bench.fresh(0, factor), bench.example, latency=False).macs
