"""Whole runs that are steered to a cost and train on with the small network."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction import Plan
from diffsparse.methods import Gated
from diffsparse.models import create
from diffsparse.training import Distillation, Hardware, Optimisation, Recipe, Sparsifying, train
from diffsparse.training.context import RunContext
from diffsparse.training.folder import Log
from diffsparse.training.loop import Trainer
from diffsparse.training.processes import joined
from tests.training.children import together
from tests.training.examples import CLASSES, RUN_MODULE, STEPS, Net, outcome, recipe, small_data, trainer

pytestmark = pytest.mark.usefixtures("data")

BROAD = f"{__name__}:Broad"
HALF = recipe(model=BROAD, sparsifying=Sparsifying(macs=0.5, due=0.3))


class Broad(nn.Module):
    """Two layers wide enough to come close to any cost."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.conv2, self.bn2 = nn.Conv2d(12, 12, 3), nn.BatchNorm2d(12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("half") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUN_MODULE, "open_data", lambda *_, **__: small_data())
        return folder, train(HALF, folder)


def test_the_cost_is_reached_and_never_exceeded(finished: tuple[Path, dict[str, Any]]) -> None:
    _, result = finished
    share = result["cost"]["compact"]["macs"] / result["cost"]["plain"]["macs"]
    # within one channel, of twelve in each layer
    assert 0.4 < share <= 0.5
    assert result["asked"] == {"macs": 0.5}
    assert result["strength"] is None
    assert result["network"] == BROAD
    assert 0 < result["zeros"]["fraction"] < 1
    assert result["zeros"]["total"] == 24


def test_the_trained_network_is_the_compact_one(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    assert result["figures"]["trained"] == result["figures"]["compact"]
    assert result["max_difference"] is None
    images, labels = next(small_data().test.in_order(40))
    for name in ("trained", "compact"):
        net = ds.load(folder / f"{name}.safetensors", Broad()).eval()
        assert (net(images).argmax(1) == labels).double().mean().item() == result["figures"][name]["accuracy"]
        assert sum(parameter.numel() for parameter in net.parameters()) == result["cost"]["compact"]["params"]
    plan = Plan.from_json((folder / "plan.json").read_text())
    assert ds.apply_plan(Broad(), plan).conv1.out_channels == net.conv1.out_channels < 12


def test_the_log_follows_the_cost(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    records = Log(path=folder / "log.jsonl").records()
    # reached within the first epoch: from there on nothing changes
    assert {record["macs"] for record in records} == {result["cost"]["compact"]["macs"]}
    assert {record["zeros"] for record in records} == {result["zeros"]["fraction"]}
    assert all(record["macs_share"] <= 0.5 < record["params_share"] + 0.5 for record in records)
    assert all("strength" not in record for record in records)


def test_without_any_option_half_of_the_macs_are_left(tmp_path: Path) -> None:
    result = train(Recipe(model=BROAD, epochs=1, batch_size=16), tmp_path)
    assert result["cost"]["compact"]["macs"] <= 0.5 * result["cost"]["plain"]["macs"]
    assert result["zeros"]["zero"] > 0


@pytest.mark.parametrize("asked", [{"params": 0.4}, {"bytes": 2000}, {"macs": 5000, "params": 0.9}], ids=str)
def test_every_cost_that_is_asked_for_holds(asked: dict[str, float], tmp_path: Path) -> None:
    result = train(dataclasses.replace(HALF, epochs=1, sparsifying=Sparsifying(**asked)), tmp_path)
    for name, limit in asked.items():
        whole = result["cost"]["plain"][name]
        assert result["cost"]["compact"][name] <= (limit * whole if limit <= 1 else limit) < whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"macs": 2.0}, r"a budget of macs=2 .* the rest still costs macs=\d+, the smallest budget"),
        ({"macs": 1e-5}, r"a budget of macs=1e-05 cannot be reached: .* the smallest budget for this network"),
        ({"params": 10**9}, r"params=1e\+09 is more than the whole network costs"),
    ],
)
def test_what_cannot_be_reached_is_said_before_anything_is_written(
    settings: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        train(recipe(sparsifying=Sparsifying(**settings)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_average_and_the_best_epoch_are_of_the_small_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUN_MODULE, "open_data", lambda *_, **__: small_data(validation=24))
    settings = Sparsifying(macs=0.5, due=0.6)
    result = train(dataclasses.replace(HALF, sparsifying=settings, optimisation=Optimisation(ema=0.9)), tmp_path)
    best = ds.load(tmp_path / "trained.safetensors", Broad())
    assert best.conv1.out_channels < 12
    assert result["cost"]["compact"]["macs"] <= 0.5 * result["cost"]["plain"]["macs"]
    # the first epoch came before the cost was reached, and was not kept
    assert ds.checkpoint.read_header(tmp_path / "train-best.safetensors").kind == "compact"


def test_a_teacher_stays_whole(tmp_path: Path) -> None:
    taught = dataclasses.replace(HALF, epochs=2, distillation=Distillation(teacher="train", teacher_epochs=1))
    result = train(taught, tmp_path)
    assert result["cost"]["compact"]["macs"] <= 0.5 * result["cost"]["plain"]["macs"]
    assert ds.load(tmp_path / "teacher.safetensors", Broad()).conv2.out_channels == 12


def test_a_narrower_network_of_the_same_family(tmp_path: Path) -> None:
    settings = Sparsifying(method="scratch", macs=0.5)
    result = train(recipe(model="preresnet8-0.5", epochs=1, sparsifying=settings), tmp_path)
    assert 0.3 < result["cost"]["compact"]["macs"] / result["cost"]["plain"]["macs"] <= 0.5
    narrow = create(result["network"], CLASSES, in_channels=1)
    small = ds.load(tmp_path / "compact.safetensors", narrow)
    assert sum(parameter.numel() for parameter in small.parameters()) == result["cost"]["compact"]["params"]


class OwnGate(nn.Module):
    """No batch norm, so that two processes with half a batch each compute what one does; it brings its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(36, 16), ds.SignedGate(16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.first(x.flatten(1))) * self.gate())
        return logits


STEERED = recipe(epochs=2, optimisation=Optimisation(learning_rate=0.05, accumulate=2, clip=1.0, ema=0.5))


def steered(folder: Path, its_recipe: Recipe = STEERED, **keywords: Any) -> tuple[Trainer, ds.Budget]:
    torch.manual_seed(3)
    model = OwnGate()
    method = Gated(macs=0.5, due=0.7).fitted(model, torch.zeros(1, 1, 6, 6), 2 * STEPS)
    assert isinstance(method, Gated)
    assert method.budget is not None
    return trainer(folder, model, method, its_recipe, **keywords), method.budget


def steer_rank(rank: int, folder: Path) -> None:
    with joined(Hardware()) as processes:
        its_trainer, budget = steered(folder / f"run{rank}", processes=processes)
        state = its_trainer.run().state_dict()
        (folder / f"{rank}.json").write_text(json.dumps([dataclasses.asdict(look) for look in budget.history]))
        torch.save(state, folder / f"{rank}.pt")


def test_two_processes_are_steered_as_one(tmp_path: Path) -> None:
    assert together(steer_rank, tmp_path) == [0, 0]
    its_trainer, budget = steered(tmp_path / "alone")
    expected = its_trainer.run().state_dict()
    looks = [dataclasses.asdict(look) for look in budget.history]
    assert len(looks) > 3
    assert budget.finished
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == looks
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    logs = [Log(path=tmp_path / name / "log.jsonl").records() for name in ("run0", "alone")]
    for one, other in zip(*logs, strict=True):
        assert [one[key] for key in ("zeros", "macs", "macs_share")] == [
            other[key] for key in ("zeros", "macs", "macs_share")
        ]


@pytest.mark.filterwarnings("ignore:Using .torch.compile:UserWarning")
def test_the_small_network_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def note(module: nn.Module) -> Any:
        compiled.append(sum(parameter.numel() for parameter in module.parameters()))
        return compile_quickly(module)

    compile_quickly = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr("torch.compile", note)
    its_trainer, _ = steered(tmp_path / "compiled", dataclasses.replace(STEERED, hardware=Hardware(compile=True)))
    found = its_trainer.run().state_dict()
    monkeypatch.undo()
    assert len(compiled) == 2
    assert compiled[1] < compiled[0]
    expected = steered(tmp_path / "plain")[0].run().state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=name)


def test_synchronised_batch_norms_of_a_budget_need_gpus(tmp_path: Path) -> None:
    its_trainer, _ = steered(tmp_path)
    context = dataclasses.replace(
        its_trainer.context,
        recipe=recipe(hardware=Hardware(sync_batchnorm=True)),
        processes=dataclasses.replace(its_trainer.processes, world=2),
    )
    assert isinstance(context, RunContext)
    gated = ds.sparsify(Net(), start=0.5)
    with pytest.raises(ds.SparsityError, match="sync_batchnorm of batch norms without gates needs GPUs"):
        context.synchronised(gated, shrinks=True)
    assert context.synchronised(gated) is gated


def test_the_same_run_twice_is_the_same(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    train(HALF, tmp_path / "again")
    assert outcome(tmp_path / "again") == outcome(finished[0])
