"""Images per second of the training loop against a bare PyTorch loop: same model and data, interleaved in one run."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import median_ratio, write_record
from torch import Tensor

from diffsparse.data import DataSet, Normalisation, TensorPart
from diffsparse.methods import Gated, Method, Sparsifying
from diffsparse.models import create
from diffsparse.training import Recipe, Watcher
from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.context import Interrupt, Phase, RunContext
from diffsparse.training.folder import Log, RunFolder
from diffsparse.training.loop import Trainer
from diffsparse.training.processes import Processes

TARGET = 0.95
Epoch = Callable[[], float]


def synthetic(count: int) -> tuple[Tensor, Tensor]:
    """Images in the shape of CIFAR, and labels."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, 32, 32, generator=generator), torch.randint(10, (count,), generator=generator)


def bare_epoch(model_name: str, images: Tensor, labels: Tensor, batch: int) -> Epoch:
    """An epoch as one would write it by hand: batch, loss, step; returns its seconds."""
    torch.manual_seed(0)
    model = create(model_name).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def epoch() -> float:
        began = time.perf_counter()
        order = torch.randperm(len(images))
        for start in range(0, len(images), batch):
            entries = order[start : start + batch]
            loss = F.cross_entropy(model(images[entries]), labels[entries])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - began

    return epoch


def trainer_epoch(model_name: str, images: Tensor, labels: Tensor, batch: int, gated: bool, folder: Path) -> Epoch:
    """An epoch of the package's own loop, without the test and the checkpoint at its end; returns its seconds."""
    torch.manual_seed(0)
    part = TensorPart(images=images, labels=labels, normalisation=Normalisation(mean=(0.0,) * 3, std=(1.0,) * 3))
    test = TensorPart(images=images[:1], labels=labels[:1], normalisation=part.normalisation)
    method = Gated(strength=1e-4) if gated else Method()
    recipe = Recipe(model=model_name, batch_size=batch, epochs=10_000, sparsifying=Sparsifying(strength=1e-4))
    run_folder = RunFolder(folder)
    run_folder.begin(recipe, resume=False, needed=0)
    phase = Phase(
        name="train",
        number=1,
        model=method.prepare(create(model_name)),
        method=method,
        sparsifying=recipe.sparsifying,
        objective=ClassificationObjective(),
        epochs=recipe.epochs,
    )
    setting = RunContext(
        recipe=recipe,
        data=DataSet(name="synthetic", train=part, test=test, input_shape=(3, 32, 32), num_outputs=10),
        processes=Processes(device=torch.device("cpu")),
        folder=run_folder,
        log=Log(path=run_folder.log),
        watcher=Watcher(),
        interrupt=Interrupt(),
    )
    trainer = Trainer(phase, setting)

    def epoch() -> float:
        before = trainer.progress.seconds
        trainer._epoch()
        return trainer.progress.seconds - before

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="preresnet20-0.5")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5, help="steps per epoch; an epoch is timed as a whole")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images, labels = synthetic(args.steps * args.batch)
    with tempfile.TemporaryDirectory() as folder:
        given = (args.model, images, labels, args.batch)
        epochs = {
            "bare": bare_epoch(*given),
            "trainer": trainer_epoch(*given, gated=False, folder=Path(folder, "plain")),
            "trainer with gates": trainer_epoch(*given, gated=True, folder=Path(folder, "gated")),
        }
        times: dict[str, list[float]] = {name: [] for name in epochs}
        # the first round warms up
        for index in range(args.rounds + 1):
            for name, epoch in epochs.items():
                seconds = epoch()
                if index:
                    times[name].append(seconds)
    rates = {name: len(images) / statistics.median(seconds) for name, seconds in times.items()}
    ratios = {f"{name} / bare": 1 / median_ratio(times, name, "bare") for name in epochs if name != "bare"}
    for name, rate in rates.items():
        print(f"{name:<18} {rate:8.1f} images/s")
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f}")
    results = {
        "config": vars(args),
        "images_per_second": rates,
        "throughput_ratio": ratios,
        "targets": {"trainer / bare": TARGET},
    }
    print(f"written to {write_record('train_throughput', results).name}")


if __name__ == "__main__":
    main()
