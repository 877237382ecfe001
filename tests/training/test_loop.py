"""The loop against a bare one, and each of its options."""

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.optim import Optimizer

from diffsparse import L1, Penalty, parameter_groups, sparsify
from diffsparse.compaction import compact
from diffsparse.data import DataSet
from diffsparse.gating import Count
from diffsparse.methods import Gated, Method, Slimming
from diffsparse.penalties import Regulariser
from diffsparse.training import Hardware, Optimisation, Recipe, Sparsifying
from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.context import Phase
from diffsparse.training.folder import Log
from diffsparse.training.loop import Trainer
from diffsparse.training.optimizer import LearningRate
from diffsparse.training.seeds import step_seed
from tests.training.examples import STEPS, Net, Smooth, recipe, run_context, small_data, trainer


def fresh(kind: type[nn.Module] = Net) -> nn.Module:
    torch.manual_seed(2)
    return kind()


def plain(folder: Path, model: nn.Module, its_recipe: Recipe, data: DataSet | None = None) -> dict[str, Tensor]:
    return trainer(folder, model, Method(), its_recipe, data).run().state_dict()


def optimised(**changes: Any) -> Recipe:
    return recipe(epochs=2, optimisation=Optimisation(**{"learning_rate": 0.05, **changes}))


def records(folder: Path) -> list[dict[str, Any]]:
    return Log(path=folder / "log.jsonl").records()


def check_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")


def test_is_a_bare_loop(tmp_path: Path) -> None:
    settings = Optimisation(learning_rate=0.05, gate_rate=0.5, weight_decay=1e-2, gate_weight_decay=1e-3)
    its_recipe = recipe(epochs=2, seed=4, optimisation=settings)
    model = sparsify(fresh(), start=0.5)
    expected = copy.deepcopy(model)
    data = small_data()
    penalty = Penalty(expected, L1(), strength=0.01)
    optimizer = torch.optim.SGD(parameter_groups(expected, 1e-2, 1e-3), lr=1.0, momentum=0.9, nesterov=True)
    rate = LearningRate(settings=settings, epochs=2, steps=STEPS)
    for position in range(2 * STEPS):
        batches = data.train.shuffled(16, seed=4, epoch=position // STEPS)
        images, labels = list(batches)[position % STEPS]
        torch.manual_seed(step_seed(4, position, 0))
        optimizer.param_groups[0]["lr"] = rate.at(position)
        optimizer.param_groups[1]["lr"] = 0.5 * rate.at(position)
        optimizer.zero_grad()
        (F.cross_entropy(expected(images), labels) + penalty()).backward()
        optimizer.step()
    its_recipe = recipe(epochs=2, seed=4, optimisation=settings, sparsifying=Sparsifying(strength=0.01))
    its_trainer = trainer(tmp_path, model, Gated(strength=0.01), its_recipe, data)
    assert its_trainer.run() is model
    check_close(model.state_dict(), expected.state_dict())


def test_every_step_has_random_numbers_of_its_own() -> None:
    seeds = {step_seed(seed, step, rank) for seed in range(3) for step in range(50) for rank in range(4)}
    assert len(seeds) == 3 * 50 * 4
    assert all(0 <= seed < 2**63 for seed in [*seeds, step_seed(2**31 - 1, 10**9, 1000)])


def test_a_batch_in_pieces_is_the_whole_batch(tmp_path: Path) -> None:
    whole = plain(tmp_path / "whole", fresh(Smooth), optimised())
    pieces = plain(tmp_path / "pieces", fresh(Smooth), optimised(accumulate=4))
    check_close(pieces, whole)
    logs = [records(tmp_path / name) for name in ("whole", "pieces")]
    assert [r["train_loss"] for r in logs[0]] == pytest.approx([r["train_loss"] for r in logs[1]])
    # batch norm sees pieces: there it is another training
    nets = [plain(tmp_path / f"net{n}", fresh(), optimised(accumulate=n)) for n in (1, 4)]
    assert not torch.allclose(nets[0]["bn1.running_mean"], nets[1]["bn1.running_mean"], rtol=1e-2)


def test_penalties_count_once_whatever_the_pieces(tmp_path: Path) -> None:
    class Gradients(Method):
        """Penalises the sum of all weights, so that its gradient is plain to see."""

        def regulariser(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Regulariser:
            class Sum(Regulariser):
                def __call__(self) -> Tensor:
                    return self.strength * torch.stack([p.sum() for p in model.parameters()]).sum()

            return Sum()

    results = []
    for pieces in (1, 4):
        its_recipe = optimised(accumulate=pieces)
        results.append(trainer(tmp_path / str(pieces), fresh(Smooth), Gradients(), its_recipe).run().state_dict())
    check_close(results[1], results[0])


def test_clip_bounds_the_step(tmp_path: Path) -> None:
    settings = Optimisation(
        learning_rate=0.5, momentum=0.0, nesterov=False, weight_decay=0.0, schedule="constant", clip=1e-3
    )
    before = fresh(Smooth).state_dict()
    data = small_data(train=16)
    after = plain(tmp_path, fresh(Smooth), recipe(epochs=1, optimisation=settings), data)
    moved = torch.cat([(after[key] - before[key]).flatten() for key in before]).norm().item()
    assert moved == pytest.approx(0.5 * 1e-3, rel=1e-3)


def test_the_average_is_what_is_tested_and_kept(tmp_path: Path) -> None:
    model = fresh()
    its_trainer = trainer(tmp_path, model, Method(), optimised(ema=0.95))
    kept = its_trainer.run()
    assert kept is not model
    assert its_trainer.average is not None
    assert kept is its_trainer.average.model
    assert its_trainer.average.updates == 2 * STEPS
    images, labels = next(small_data().test.in_order(40))
    with torch.no_grad():
        losses = [F.cross_entropy(net.eval()(images), labels).item() for net in (kept, model)]
    logged = records(tmp_path)[-1]["test_loss"]
    assert logged == pytest.approx(losses[0])
    assert logged != pytest.approx(losses[1])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_leaves_weights_and_gates_in_full(precision: Any, tmp_path: Path) -> None:
    seen = set()
    results = {}
    for name in ("float32", precision):
        model = sparsify(fresh(), start=0.5)
        model.conv2.register_forward_hook(lambda _m, _i, output: seen.add(output.dtype))
        its_recipe = recipe(epochs=1, hardware=Hardware(precision=name))
        its_trainer = trainer(tmp_path / name, model, Gated(strength=0.01), its_recipe)
        assert its_trainer.scaler.is_enabled() == (name == "float16")
        results[name] = its_trainer.run().state_dict()
    assert getattr(torch, precision) in seen
    for key, value in results[precision].items():
        assert value.dtype == results["float32"][key].dtype, key
        torch.testing.assert_close(value, results["float32"][key], rtol=0.2, atol=0.05)
    assert not torch.equal(results[precision]["conv1.weight"], results["float32"]["conv1.weight"])


def test_channels_last_is_the_same_training(tmp_path: Path) -> None:
    expected = plain(tmp_path / "plain", fresh(), recipe(epochs=1))
    model = fresh().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen = []
    model.conv2.register_forward_hook(
        lambda _m, inputs, _o: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    its_recipe = recipe(epochs=1, hardware=Hardware(channels_last=True))
    check_close(plain(tmp_path / "last", model, its_recipe), expected)
    assert all(seen[:STEPS])


def test_slimming_cuts_to_its_target_and_does_not_steer(tmp_path: Path) -> None:
    settings = Sparsifying(method="slimming", strength=1e-3, target=0.5)
    method = Slimming(strength=1e-3, target=0.5)
    its_trainer = trainer(tmp_path, method.prepare(fresh()), method, recipe(sparsifying=settings))
    its_trainer.run()
    assert [record["strength"] for record in records(tmp_path)] == [1e-3] * 3


def test_a_log_line_says_how_the_epoch_went(tmp_path: Path) -> None:
    model = sparsify(fresh(), start=0.5)
    model.bn2.gate.alpha.detach()[:2] = 0
    its_recipe = recipe(epochs=2, sparsifying=Sparsifying(strength=0.01, ramp_epochs=4))
    its_trainer = trainer(tmp_path, model, Gated(strength=0.01), its_recipe, small_data(validation=16))
    its_trainer.run()
    first, second = records(tmp_path)
    figures = [f"{part}_{name}" for part in ("train", "validation", "test") for name in ("loss", "accuracy")]
    assert list(first) == ["phase", "epoch", *figures, "learning_rate", "zeros", "strength", "macs", "seconds"]
    assert (first["phase"], first["epoch"], second["epoch"]) == ("train", 1, 2)
    assert second["zeros"] == pytest.approx(0.2)
    assert second["macs"] == compact(model, torch.zeros(1, 1, 6, 6)).after.macs
    assert 0 < first["seconds"] < second["seconds"]
    # lambda and learning rate of the last step of the epoch
    assert first["strength"] == pytest.approx(0.01 * (1 - (1 - 5 / 24) ** 3))
    assert first["learning_rate"] == its_trainer.rate.at(STEPS - 1)


class Fading(nn.Module):
    """Right about everything until it has seen seven batches."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = Smooth(), nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        logits: Tensor = self.inner(x) * (1 if self.seen <= STEPS else -1)
        return logits


def test_the_best_on_validation_is_kept(tmp_path: Path) -> None:
    data = small_data(validation=32)
    torch.manual_seed(0)
    kept = trainer(tmp_path, Fading(), Method(), recipe(epochs=3), data).run()
    logged = records(tmp_path)
    accuracies = [record["validation_accuracy"] for record in logged]
    assert accuracies[0] > max(accuracies[1:])
    assert kept.get_buffer("seen") == STEPS
    images, labels = next(data.test.in_order(40))
    right = (kept.eval()(images).argmax(1) == labels).double().mean()
    assert right.item() == logged[0]["test_accuracy"]


def test_the_best_is_looked_for_where_the_target_is_reached(tmp_path: Path) -> None:
    class Sparse(Method):
        """Half of what it counts is zero from the second epoch on."""

        def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
            return Penalty(sparsify(fresh()), L1(), 0.0)

        def zeros(self, model: nn.Module) -> Count:
            return Count(zero=5 if model.get_buffer("seen") > STEPS else 0, total=10)

    torch.manual_seed(0)
    for target, epochs_seen in ((0.505, (2, 3)), (0.6, (3,))):
        aimed = dataclasses.replace(recipe(epochs=3), sparsifying=Sparsifying(target=target))
        kept = trainer(tmp_path / f"{target}", Fading(), Sparse(), aimed, small_data(validation=32)).run()
        # nowhere reached: the last
        assert kept.get_buffer("seen") in [STEPS * epoch for epoch in epochs_seen]


def test_whole_phases_of_no_epochs_are_fine(tmp_path: Path) -> None:
    model = fresh()
    before = copy.deepcopy(model.state_dict())
    phase = Phase(
        name="retrain",
        number=2,
        model=model,
        method=Method(),
        sparsifying=recipe().sparsifying,
        objective=ClassificationObjective(),
        epochs=0,
    )
    assert Trainer(phase, run_context(tmp_path, recipe())).run() is model
    check_close(model.state_dict(), before)


@pytest.mark.filterwarnings("ignore:Using .torch.compile:UserWarning")
def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trainer(tmp_path / "plain", sparsify(fresh(), start=0.5), Gated(strength=0.01), optimised()).run()
    # the default backend gives the same numbers after a minute of C++
    monkeypatch.setattr("torch.compile", functools.partial(torch.compile, backend="eager"))
    its_recipe = dataclasses.replace(optimised(), hardware=Hardware(compile=True))
    model = sparsify(fresh(), start=0.5)
    its_trainer = trainer(tmp_path / "compiled", model, Gated(strength=0.01), its_recipe)
    assert isinstance(its_trainer.forward, OptimizedModule)
    assert its_trainer.run() is model
    check_close(model.state_dict(), expected.state_dict())
