"""Why a plain moving average of a gated network fails: averages of parts of it, side by side in the same runs.

Writes experiments/results/averaging.json, which docs/training.md quotes. About three minutes on one core.
"""

import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import diffsparse as ds

RESULTS = Path(__file__).parent / "results" / "averaging.json"
NETWORK, EPOCHS, BATCH, RATE, DECAY = "preresnet14", 12, 64, 0.1, 0.98
STRENGTHS, SEEDS = (0.0, 0.02), 3


def is_statistic(name: str) -> bool:
    return ".running_" in name


def is_gate(name: str) -> bool:
    return ".gate." in name


class PartAverage:
    """Averages the tensors that `chosen` names one by one, as `AveragedModel` does, and copies the others."""

    def __init__(self, model: nn.Module, chosen: Callable[[str], bool]) -> None:
        self.model, self.chosen = copy.deepcopy(model), chosen
        self.started = False

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for (name, mean), value in zip(self.model.state_dict().items(), model.state_dict().values(), strict=True):
            if self.started and mean.is_floating_point() and self.chosen(name):
                mean.lerp_(value, 1 - DECAY)
            else:
                mean.copy_(value)
        self.started = True


PARTS: dict[str, Callable[[str], bool]] = {
    "statistics only": is_statistic,
    "gates only": is_gate,
    "weights only": lambda name: not is_statistic(name) and not is_gate(name),
    "all but statistics": lambda name: not is_statistic(name),
    "all but gates": lambda name: not is_gate(name),
    "all but variances": lambda name: not name.endswith("running_var"),
}


def train(seed: int, strength: float) -> dict[str, float]:
    """Test accuracies of the model and its averages at the end of one run, the zeros, and how wrong variances are."""
    data = ds.data.open_data("digits", augment=False)
    torch.manual_seed(seed)
    model = ds.sparsify(ds.models.create(NETWORK, 10, in_channels=1), start=0.5)
    penalty = ds.Penalty(model, ds.L1(), strength)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (len(data.train) // BATCH))
    plain = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True)
    parts = {name: PartAverage(model, chosen) for name, chosen in PARTS.items()}
    ours = ds.MovingAverage(model, DECAY)
    for epoch in range(EPOCHS):
        model.train()
        for x, y in data.train.shuffled(BATCH, seed=seed, epoch=epoch):
            loss = F.cross_entropy(model(x), y) + penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            plain.update_parameters(model)
            ours.update(model)
            for part in parts.values():
                part.update(model)
    test = next(data.test.in_order(len(data.test)))
    batches = [x for x, _ in data.train.shuffled(BATCH, seed=seed, epoch=EPOCHS)]
    found = {"zeros": ds.sparsity(model).channels.fraction, "model": accuracy(model, *test)}
    found["AveragedModel"] = accuracy(plain, *test)
    before = variances(plain)
    update_bn(batches, plain)
    found["averaged over measured variance"] = (before / variances(plain)).median().item()
    found["AveragedModel, update_bn"] = accuracy(plain, *test)
    found |= {name: accuracy(part.model, *test) for name, part in parts.items()}
    found["MovingAverage, not calibrated"] = accuracy(ours.model, *test)
    for count in (2, 20):
        ours.calibrate(batches, count)
        found[f"MovingAverage, {count} batches"] = accuracy(ours.model, *test)
    return found


def variances(model: nn.Module) -> Tensor:
    """Of all channels of all batch norms, with eps."""
    return torch.cat([t for name, t in model.state_dict().items() if name.endswith("running_var")]) + 1e-5


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return (model.eval()(x).argmax(1) == y).double().mean().item()


def cost() -> dict[str, float]:
    """Milliseconds of a training step of a larger network, and of an update of its averages."""
    torch.manual_seed(0)
    model = ds.sparsify(ds.models.create("preresnet56", 10), start=0.5)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
    x, y = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    ours = ds.MovingAverage(model)
    plain = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return {
        "step": milliseconds(step, 3),
        "MovingAverage.update": milliseconds(lambda: ours.update(model), 30),
        "AveragedModel.update_parameters": milliseconds(lambda: plain.update_parameters(model), 30),
    }


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for strength in STRENGTHS:
        runs = [train(seed, strength) for seed in range(SEEDS)]
        for name in runs[0]:
            figures = [run[name] for run in runs]
            print(f"lambda {strength:g}  {name:<32}" + "".join(f"{figure:8.1%}" for figure in figures), flush=True)
        rows.append({"strength": strength, "runs": runs})
    settings = {"network": NETWORK, "epochs": EPOCHS, "batch": BATCH, "learning_rate": RATE, "decay": DECAY}
    its_cost = cost()
    print(its_cost)
    content = {
        "settings": settings | {"data": "digits", "momentum": 0.9, "schedule": "cosine"},
        "rows": rows,
        "milliseconds, preresnet56, batch 64 of 32 x 32": its_cost,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
