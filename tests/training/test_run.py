"""Whole runs: every method, what they write, and what goes wrong."""

import dataclasses
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diffsparse
from diffsparse import SparsityError, load
from diffsparse.checkpoint import save
from diffsparse.errors import CheckpointError
from diffsparse.training import (
    Distillation,
    Hardware,
    Optimisation,
    Recipe,
    Sparsifying,
    StoppedError,
    Watcher,
    read_recipe,
    train,
)
from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.folder import Log, RunFolder
from tests.training.examples import CLASSES, RUN_MODULE, STEPS, Net, Signals, outcome, recipe, small_data

pytestmark = pytest.mark.usefixtures("data")

SPARSE = recipe(sparsifying=Sparsifying(strength=0.1), optimisation=Optimisation(learning_rate=0.2))


def sparsified(**changes: Any) -> Recipe:
    return recipe(epochs=1, sparsifying=Sparsifying(**changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished run with gates, and its result."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUN_MODULE, "open_data", lambda *_, **__: small_data())
        return folder, train(SPARSE, folder)


def test_what_is_in_the_folder(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.toml",
        "log.jsonl",
        "checkpoints",
        "trained.safetensors",
        "compact.safetensors",
        "plan.json",
        "result.json",
    }
    assert json.loads((folder / "result.json").read_text()) == result
    assert read_recipe(folder / "config.toml") == SPARSE


def test_what_the_result_says(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    assert Recipe.from_dict(result["config"]) == SPARSE
    assert result["config"]["seed"] == 0
    environment = result["environment"]
    assert environment["diffsparse"] == diffsparse.__version__
    assert environment["torch"] == torch.__version__
    assert environment["processes"] == 1
    assert result["zeros"]["total"] == 10
    assert result["zeros"]["fraction"] == result["zeros"]["zero"] / 10
    assert result["cost"]["compact"]["file_bytes"] == (folder / "compact.safetensors").stat().st_size
    assert result["max_difference"] < 1e-4
    assert result["training_seconds"] == {"train": Log(path=folder / "log.jsonl").records()[-1]["seconds"]}
    last = Log(path=folder / "log.jsonl").records()[-1]
    assert result["figures"]["trained"] == {"loss": last["test_loss"], "accuracy": last["test_accuracy"]}
    assert result["cost"]["compact"]["macs"] == last["macs"]


def test_files_load_into_the_users_class(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    images, labels = next(small_data().test.in_order(40))
    for name in ("trained", "compact"):
        net = load(folder / f"{name}.safetensors", Net()).eval()
        right = (net(images).argmax(1) == labels).double().mean().item()
        assert right == result["figures"][name]["accuracy"]
    assert result["cost"]["plain"]["params"] == sum(parameter.numel() for parameter in Net().parameters())


def test_the_configuration_in_the_folder_repeats_the_run(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = finished
    train(read_recipe(folder / "config.toml"), tmp_path)
    assert outcome(tmp_path) == outcome(folder)
    train(dataclasses.replace(SPARSE, seed=1), tmp_path / "other")
    assert outcome(tmp_path / "other")["files"] != outcome(folder)["files"]


@pytest.mark.parametrize(
    "its_recipe",
    [
        sparsified(method="plain"),
        sparsified(method="proximal-l21", group_size=2, strength=0.1),
        sparsified(method="slimming", target=0.3, retrain_epochs=0),
        sparsified(method="slimming", macs=0.6),
        sparsified(norm="l12", strength=1e-3, rgf=0.1, start=1.0),
    ],
    ids=lambda its_recipe: its_recipe.sparsifying.method,
)
def test_methods(its_recipe: Recipe, tmp_path: Path) -> None:
    result = train(its_recipe, tmp_path)
    phases = [record["phase"] for record in Log(path=tmp_path / "log.jsonl").records()]
    settings = its_recipe.sparsifying
    cuts = settings.method == "slimming"
    assert phases == ["train"] + ["retrain"] * (settings.retrain_epochs != 0 and cuts)
    if settings.macs is not None:
        assert result["cost"]["compact"]["macs"] <= 0.6 * result["cost"]["plain"]["macs"]
    assert (result["cost"]["compact"]["macs"] < result["cost"]["plain"]["macs"]) == cuts
    small = load(tmp_path / "compact.safetensors", Net()).eval()
    images, labels = next(small_data().test.in_order(40))
    assert (small(images).argmax(1) == labels).double().mean() == result["figures"]["compact"]["accuracy"]


def test_another_library_cuts(tmp_path: Path) -> None:
    pytest.importorskip("torch_pruning")
    result = train(sparsified(method="torch-pruning", target=0.5), tmp_path)
    assert result["cost"]["compact"]["macs"] < 0.7 * result["cost"]["plain"]["macs"]
    assert not (tmp_path / "plan.json").exists()


def test_the_small_architecture_from_a_fresh_start(tmp_path: Path) -> None:
    cut = train(sparsified(method="slimming", target=0.4, retrain_epochs=0), tmp_path / "cut")
    like = tmp_path / "cut" / "compact.safetensors"
    result = train(sparsified(method="scratch", like=like), tmp_path / "scratch")
    assert result["cost"]["compact"]["macs"] == cut["cost"]["compact"]["macs"]
    small = load(tmp_path / "scratch" / "compact.safetensors", Net())
    assert not torch.equal(small.conv1.weight, load(like, Net()).conv1.weight)


def test_an_average_can_be_cut_and_trained_again(tmp_path: Path) -> None:
    its_recipe = recipe(
        epochs=1,
        optimisation=Optimisation(ema=0.9),
        sparsifying=Sparsifying(method="slimming", target=0.3, retrain_epochs=1),
    )
    train(its_recipe, tmp_path)
    assert [record["phase"] for record in Log(path=tmp_path / "log.jsonl").records()] == ["train", "retrain"]


class Tall(nn.Module):
    """A teacher of another shape."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


class Flat(nn.Sequential):
    """A single layer, which reads the input itself."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(36, CLASSES))


def test_a_teacher_from_a_file_and_one_trained_first(tmp_path: Path) -> None:
    trained_first = recipe(epochs=1, distillation=Distillation(teacher="train", teacher_epochs=2))
    train(trained_first, tmp_path / "first")
    assert [(r["phase"], r["epoch"]) for r in Log(path=tmp_path / "first" / "log.jsonl").records()] == [
        ("teacher", 1),
        ("teacher", 2),
        ("train", 1),
    ]
    file = tmp_path / "first" / "teacher.safetensors"
    train(recipe(epochs=1, distillation=Distillation(teacher=str(file))), tmp_path / "file")
    both = [outcome(tmp_path / name)["files"]["trained.safetensors"] for name in ("first", "file")]
    assert both[0] == both[1]
    train(recipe(epochs=1), tmp_path / "none")
    assert outcome(tmp_path / "none")["files"]["trained.safetensors"] != both[0]


def test_a_teacher_of_another_architecture(tmp_path: Path) -> None:
    save(Tall(), tmp_path / "tall.safetensors")
    teacher = Distillation(teacher=str(tmp_path / "tall.safetensors"), teacher_model=f"{__name__}:Tall")
    train(recipe(epochs=1, distillation=teacher), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"tall.safetensors.* does not fit this .*Net"):
        train(recipe(epochs=1, distillation=dataclasses.replace(teacher, teacher_model=None)), tmp_path / "wrong")
    save(Tall(3), tmp_path / "tall.safetensors")
    with pytest.raises(CheckpointError, match=r"does not fit this .*Tall"):
        train(recipe(epochs=1, distillation=teacher), tmp_path / "classes")


class Watching(Watcher):
    """Raises on purpose, to see that errors of others pass."""

    def step_done(self, *_: object) -> None:
        raise ArithmeticError("mine")


def test_errors_of_a_watcher_pass(tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match="mine"):
        train(recipe(), tmp_path, watcher=Watching())


@pytest.mark.parametrize("failing", [4, 7, 12, 17])
def test_a_disk_that_fills_up_leaves_a_run_that_can_go_on(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sync = os.fsync

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) >= failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(CheckpointError, match=r"cannot write '.*': No space left on device"):
            train(recipe(), tmp_path / "run")
    assert list((tmp_path / "run").rglob("*.tmp")) == []
    folder = RunFolder(tmp_path / "run")
    assert folder.snapshots() == [] or folder.newest_snapshot() is not None
    train(recipe(), tmp_path / "run", resume=True)
    train(recipe(), tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize(
    ("its_recipe", "message"),
    [
        (recipe(batch_size=97), "a batch of 97 is more than the 96 inputs of small to train on"),
        (recipe(epochs=0), "epochs must be"),
        (recipe(model="preresnet9"), "got 9"),
        (recipe(hardware=Hardware(device="cuda:9")), "device 'cuda:9' cannot be used"),
        (recipe(model=f"{__name__}:Flat"), "nothing to gate in Flat"),
        (sparsified(method="scratch", like=Path("none.safetensors")), "there is no file 'none.safetensors'"),
        (recipe(distillation=Distillation(teacher="none.safetensors")), "there is no file 'none.safetensors'"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(its_recipe: Recipe, message: str, tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=message):
        train(its_recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_tensorboard_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SparsityError, match="--tensorboard needs TensorBoard"):
        train(recipe(), tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_tensorboard_besides_the_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(recipe(epochs=1), tmp_path, tensorboard=True)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert len(Log(path=tmp_path / "log.jsonl").records()) == 1


def test_another_configuration_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(recipe(), tmp_path, watcher=Signals(STEPS))
    with pytest.raises(SparsityError, match=r"was begun with seed = 0, not 1; a run is resumed as it was begun"):
        train(recipe(seed=1), tmp_path, resume=True)
    with pytest.raises(SparsityError, match="already holds a run"):
        train(recipe(), tmp_path)


def test_resuming_what_has_not_begun_is_beginning(tmp_path: Path) -> None:
    assert train(recipe(epochs=1), tmp_path / "new", resume=True)["config"]["epochs"] == 1


def test_the_options_reach_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Label smoothing, and alpha and temperature of a teacher."""
    made = []

    class Noted(ClassificationObjective):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            made.append((self.label_smoothing, self.teacher is not None, self.alpha, self.temperature))

    monkeypatch.setattr("diffsparse.training.classification.ClassificationObjective", Noted)
    settings = Distillation(teacher="train", teacher_epochs=1, alpha=0.7, temperature=2.0)
    train(recipe(epochs=1, optimisation=Optimisation(label_smoothing=0.2), distillation=settings), tmp_path)
    assert made[0][:2] == (0.2, False)
    assert made[-1] == (0.2, True, 0.7, 2.0)


class Listener(Watcher):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def say(self, text: str) -> None:
        self.words.append(text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"strength": 1e-9},
            [
                "the run is too short for any strength: ",
                "nothing has become zero: the run is too short for any strength",
            ],
        ),
        (
            {"strength": 1e-9, "target": 0.5},
            ["0.0% are zero, and the target was 50.0%: the run is too short"],
        ),
        ({"macs": 0.9}, ["the network became small with "]),
        ({"method": "proximal-l1", "strength": 0.5, "target": 0.2}, []),
        ({"method": "plain"}, []),
    ],
)
def test_what_is_missing_is_said(settings: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    listener = Listener()
    train(sparsified(**settings), tmp_path, watcher=listener)
    assert len(listener.words) == len(words)
    assert all(found.startswith(word) for found, word in zip(listener.words, words, strict=True))


def test_resuming_what_never_began_is_said(tmp_path: Path) -> None:
    listener = Listener()
    train(sparsified(method="plain"), tmp_path / "new", resume=True, watcher=listener)
    assert listener.words == [f"'{tmp_path / 'new'}' holds no checkpoint: the run starts from the beginning"]
