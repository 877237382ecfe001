"""A run that was stopped and resumed is, bit for bit, the run that was not."""

import functools
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from diffsparse.errors import SparsityWarning
from diffsparse.training import Distillation, Hardware, Optimisation, Recipe, Sparsifying, StoppedError, train
from diffsparse.training.folder import Log, RunFolder
from tests.training.examples import STEPS, Signals, outcome, recipe, run_stopped

pytestmark = pytest.mark.usefixtures("data")

BUDGET = Sparsifying(macs=0.5, params=0.7, due=0.5)
"""Small after nine steps: the first stop comes before, the second after."""
RUNS = {
    "sgd": recipe(optimisation=Optimisation(learning_rate=0.05)),
    "adam": recipe(optimisation=Optimisation(optimizer="adam", learning_rate=0.01, warmup_epochs=1, clip=1.0)),
    "ema in pieces": recipe(optimisation=Optimisation(ema=0.9, accumulate=2, schedule="steps", label_smoothing=0.1)),
    "ramp": recipe(sparsifying=Sparsifying(strength=0.05, ramp_epochs=2.5)),
    "target": recipe(sparsifying=Sparsifying(strength=0.01, target=0.1)),
    "proximal": recipe(sparsifying=Sparsifying(method="proximal-l1", strength=0.05, target=0.4)),
    "budget": recipe(sparsifying=BUDGET),
    "budget, ema in pieces": recipe(
        sparsifying=BUDGET, optimisation=Optimisation(optimizer="adam", ema=0.9, accumulate=2, clip=1.0)
    ),
    "budget, channels last, bfloat16": recipe(
        sparsifying=BUDGET, hardware=Hardware(channels_last=True, precision="bfloat16")
    ),
    "budget, float16": recipe(sparsifying=BUDGET, hardware=Hardware(precision="float16")),
    "channels last": recipe(hardware=Hardware(channels_last=True)),
    "bfloat16": recipe(hardware=Hardware(precision="bfloat16")),
    "float16": recipe(hardware=Hardware(precision="float16")),
}
CUT = recipe(
    epochs=2,
    optimisation=Optimisation(ema=0.9),
    sparsifying=Sparsifying(method="slimming", strength=0.01, target=0.3, retrain_epochs=2),
)
TAUGHT = recipe(epochs=2, distillation=Distillation(teacher="train", teacher_epochs=2), sparsifying=BUDGET)


@functools.cache
def uninterrupted(its_recipe: Recipe) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        train(its_recipe, Path(folder, "run"))
        return outcome(Path(folder, "run"))


def check_same(folder: Path, its_recipe: Recipe) -> None:
    expected, found = uninterrupted(its_recipe), outcome(folder)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == value, key


@pytest.mark.parametrize("its_recipe", RUNS.values(), ids=RUNS.keys())
def test_stopped_within_and_between_epochs(its_recipe: Recipe, tmp_path: Path) -> None:
    within, between = Signals(STEPS + 2, signal.SIGTERM), Signals(2 * STEPS, signal.SIGINT)
    run_stopped(its_recipe, tmp_path, within, between)
    check_same(tmp_path, its_recipe)


def test_stops_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    run_stopped(RUNS["sgd"], tmp_path, Signals(STEPS + 2))
    names = [path.name for path in folder.snapshots()]
    assert names == ["1-train-00003-0000000.safetensors", "1-train-00002-0000000.safetensors"]
    with pytest.raises(AssertionError, match="not stopped"):
        run_stopped(RUNS["sgd"], tmp_path / "no", Signals(3 * STEPS + 1))


def test_a_stop_keeps_the_step_at_hand_and_loses_nothing(tmp_path: Path) -> None:
    stop = Signals(STEPS + 2)
    with pytest.raises(StoppedError):
        train(RUNS["sgd"], tmp_path, watcher=stop)
    assert [path.name for path in RunFolder(tmp_path).snapshots()] == [
        "1-train-00001-0000002.safetensors",
        "1-train-00001-0000000.safetensors",
    ]


@pytest.mark.parametrize(
    "stops",
    [
        [Signals(3, phase="retrain")],
        [Signals(STEPS, phase="retrain")],
        [Signals(2 * STEPS), Signals(3, phase="retrain"), Signals(STEPS + 1, phase="retrain")],
    ],
    ids=["within an epoch", "between epochs", "several times"],
)
def test_stopped_while_training_again_after_a_cut(stops: list[Signals], tmp_path: Path) -> None:
    run_stopped(CUT, tmp_path, *stops)
    check_same(tmp_path, CUT)


def test_stopped_while_the_teacher_is_trained(tmp_path: Path) -> None:
    run_stopped(TAUGHT, tmp_path, Signals(3, phase="teacher"), Signals(STEPS, phase="teacher"), Signals(2))
    check_same(tmp_path, TAUGHT)


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path) -> None:
    stop = Signals(2 * STEPS + 1)
    with pytest.raises(StoppedError):
        train(RUNS["sgd"], tmp_path, watcher=stop)
    newest, before = RunFolder(tmp_path).snapshots()
    newest.write_bytes(newest.read_bytes()[:-100])
    said: list[str] = []
    watcher = Signals(-1)
    watcher.say = said.append  # type: ignore[method-assign]
    with pytest.warns(SparsityWarning, match=rf"skipping a checkpoint: '.*{newest.name}' is truncated"):
        train(RUNS["sgd"], tmp_path, resume=True, watcher=watcher)
    assert said[0] == f"going on from '{before}'"
    check_same(tmp_path, RUNS["sgd"])


def test_without_any_whole_checkpoint_the_run_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(RUNS["sgd"], tmp_path, watcher=Signals(STEPS))
    for path in RunFolder(tmp_path).snapshots():
        path.write_bytes(b"")
    with pytest.warns(SparsityWarning, match="skipping"):
        train(RUNS["sgd"], tmp_path, resume=True)
    check_same(tmp_path, RUNS["sgd"])


def test_a_log_that_is_ahead_of_the_checkpoint_is_cut_back(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(RUNS["sgd"], tmp_path, watcher=Signals(STEPS))
    log = Log(path=tmp_path / "log.jsonl")
    log.add({"phase": "train", "epoch": 2, "seconds": 1.0})
    with open(log.path, "a") as file:
        file.write('{"phase": "train", "epo')
    train(RUNS["sgd"], tmp_path, resume=True)
    check_same(tmp_path, RUNS["sgd"])


def test_a_finished_run_can_be_resumed_and_stays_the_same(tmp_path: Path) -> None:
    for its_recipe, name in ((RUNS["ema in pieces"], "plain"), (CUT, "cut"), (RUNS["budget, ema in pieces"], "small")):
        train(its_recipe, tmp_path / name)
        train(its_recipe, tmp_path / name, resume=True)
        check_same(tmp_path / name, its_recipe)
