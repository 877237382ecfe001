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
    """Averages the tensors that `chosen` names one by one, as `AveragedModel` does, and copies the others.

    With `rising` the decay rises as that of `MovingAverage` does; with `logs` it averages logarithms of variances.
    """

    def __init__(self, chosen: Callable[[str], bool], *, rising: bool = False, logs: bool = False) -> None:
        self.chosen, self.rising, self.logs = chosen, rising, logs
        self.means: dict[str, Tensor] = {}
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        decay = min(DECAY, (1 + self.updates) / (10 + self.updates)) if self.rising else DECAY
        self.updates += 1
        for name, tensor in model.state_dict().items():
            value = (tensor + 1e-5).log() if self._by_log(name) else tensor.clone()
            averaged = name in self.means and value.is_floating_point() and self.chosen(name)
            self.means[name] = self.means[name].lerp(value, 1 - decay) if averaged else value

    def _by_log(self, name: str) -> bool:
        return self.logs and name.endswith("running_var")

    def write(self, model: nn.Module) -> nn.Module:
        """The average, in a copy of `model`."""
        average = copy.deepcopy(model)
        state = {k: (mean.exp() - 1e-5).clamp_min(0) if self._by_log(k) else mean for k, mean in self.means.items()}
        average.load_state_dict(state)
        return average


def make_parts() -> dict[str, PartAverage]:
    return {
        "statistics only": PartAverage(is_statistic),
        "gates only": PartAverage(is_gate),
        "weights only": PartAverage(lambda name: not is_statistic(name) and not is_gate(name)),
        "all but statistics": PartAverage(lambda name: not is_statistic(name)),
        "all but gates": PartAverage(lambda name: not is_gate(name)),
        "all but variances": PartAverage(lambda name: not name.endswith("running_var")),
        "all, rising decay": PartAverage(lambda name: True, rising=True),
        "all, logarithms of variances": PartAverage(lambda name: True, logs=True),
    }


def train(seed: int, strength: float) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Test accuracies of the model and its averages at the end of one run, the zeros, and how wrong variances are.

    And accuracies after each epoch.
    """
    data = ds.data.open_data("digits", augment=False)
    torch.manual_seed(seed)
    model = ds.sparsify(ds.models.create(NETWORK, 10, in_channels=1), start=0.5)
    penalty = ds.Penalty(model, ds.L1(), strength)
    optimizer = torch.optim.SGD(ds.parameter_groups(model, weight_decay=1e-4), lr=RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (len(data.train) // BATCH))
    plain = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True)
    parts, ours = make_parts(), ds.MovingAverage(model, DECAY)
    test, epochs = next(data.test.in_order(len(data.test))), []
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
        seen = [x for x, _ in data.train.shuffled(BATCH, seed=seed, epoch=epoch)]
        epochs.append(epoch_figures(model, parts["all, rising decay"], ours, seen, test))
    batches = [x for x, _ in data.train.shuffled(BATCH, seed=seed, epoch=EPOCHS)]
    found = {"zeros": ds.sparsity(model).channels.fraction, "model": accuracy(model, *test)}
    found["AveragedModel"] = accuracy(plain, *test)
    before = variances(plain)
    update_bn(batches, plain)
    found["averaged over measured variance"] = (before / variances(plain)).median().item()
    found["AveragedModel, update_bn"] = accuracy(plain, *test)
    found |= {name: accuracy(part.write(model), *test) for name, part in parts.items()}
    found["MovingAverage, not calibrated"] = accuracy(ours.model, *test)
    for count in (2, 10):
        ours.calibrate(batches, count)
        found[f"MovingAverage, {count} batches"] = accuracy(ours.model, *test)
    return found, epochs


def epoch_figures(
    model: nn.Module, plain: PartAverage, ours: ds.MovingAverage[Any], seen: list[Tensor], test: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Accuracies in the middle of a run; the average is calibrated in a copy."""
    calibrated = copy.deepcopy(ours)
    calibrated.calibrate(seen, 10)
    models = {"model": model, "all, rising decay": plain.write(model)}
    models |= {"MovingAverage, not calibrated": ours.model, "MovingAverage, 10 batches": calibrated.model}
    return {name: accuracy(network, *test) for name, network in models.items()}


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
    optimizer = torch.optim.SGD(ds.parameter_groups(model, weight_decay=1e-4), lr=0.1, momentum=0.9)
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
        both = [train(seed, strength) for seed in range(SEEDS)]
        runs, curves = [found for found, _ in both], [epochs for _, epochs in both]
        for name in runs[0]:
            figures = [run[name] for run in runs]
            print(f"lambda {strength:g}  {name:<32}" + "".join(f"{figure:8.1%}" for figure in figures), flush=True)
        second_half = {
            name: [statistics.mean(figures[name] for figures in curve[EPOCHS // 2 :]) for curve in curves]
            for name in curves[0][0]
        }
        print("means over epochs of the second half", second_half, flush=True)
        rows.append({"strength": strength, "runs": runs, "epochs": curves, "means over the second half": second_half})
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
