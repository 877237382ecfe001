"""Two real processes train together and get what one process of the whole batch gets."""

import dataclasses
import json
import platform
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse
from diffsparse import SparsityError, sparsify
from diffsparse.methods import Gated, Method
from diffsparse.training import Hardware, Optimisation, Recipe, StoppedError
from diffsparse.training.folder import Log
from diffsparse.training.processes import Processes, environment, joined
from tests.training.children import command, together
from tests.training.examples import NET, Net, Smooth, recipe, run_context, small_data, trainer

TWO_EPOCHS = recipe(epochs=2, optimisation=Optimisation(learning_rate=0.05))
IN_PIECES = dataclasses.replace(TWO_EPOCHS, optimisation=Optimisation(learning_rate=0.05, accumulate=2, ema=0.9))


def gated_net() -> nn.Module:
    torch.manual_seed(3)
    net = Net(dropout=0.0)
    return sparsify(net, start=0.5)


def smooth_net() -> nn.Module:
    torch.manual_seed(3)
    return Smooth()


def train_rank(rank: int, folder: Path) -> None:
    """A synchronised gated net, and a net without batch norm in pieces, on this process's share."""
    with joined(Hardware()) as processes:
        runs = {
            "gated": (nn.SyncBatchNorm.convert_sync_batchnorm(gated_net()), Gated(strength=0.01), TWO_EPOCHS),
            "pieces": (smooth_net(), Method(), IN_PIECES),
        }
        for name, (net, method, its_recipe) in runs.items():
            its_trainer = trainer(folder / f"{name}{rank}", net, method, its_recipe, processes=processes)
            state = its_trainer.run().state_dict()
            torch.save(state, folder / f"{name}{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    assert together(train_rank, folder) == [0, 0]
    return folder


def state(folder: Path, name: str) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(folder / f"{name}.pt", weights_only=True)
    return loaded


def alone(tmp_path: Path, net: nn.Module, method: Any, its_recipe: Recipe) -> tuple[dict[str, Any], list[Any]]:
    its_trainer = trainer(tmp_path, net, method, its_recipe)
    return its_trainer.run().state_dict(), its_trainer.context.log.records()


def check_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


def test_synchronised_ranks_equal_one_process_of_the_whole_batch(ranks: Path, tmp_path: Path) -> None:
    expected, _ = alone(tmp_path / "both", gated_net(), Gated(strength=0.01), TWO_EPOCHS)
    check_close(state(ranks, "gated0"), expected)
    # half of the batch is not enough for that
    half = dataclasses.replace(TWO_EPOCHS, batch_size=8)
    other, _ = alone(tmp_path / "half", gated_net(), Gated(strength=0.01), half)
    assert not torch.allclose(other["conv1.weight"], expected["conv1.weight"], rtol=1e-2)


def test_gates_are_the_same_on_both_ranks(ranks: Path) -> None:
    first, second = state(ranks, "gated0"), state(ranks, "gated1")
    gates = {key for key in first if ".gate." in key}
    assert len(gates) == 4
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not any(torch.equal(first[key], gated_net().state_dict()[key]) for key in gates)


def test_batches_in_pieces_equal_the_whole_batch(ranks: Path, tmp_path: Path) -> None:
    whole = dataclasses.replace(IN_PIECES, optimisation=Optimisation(learning_rate=0.05, ema=0.9))
    expected, _ = alone(tmp_path, smooth_net(), Method(), whole)
    check_close(state(ranks, "pieces0"), expected)
    check_close(state(ranks, "pieces1"), expected)


def test_figures_are_those_of_all_processes_and_only_the_first_writes(ranks: Path, tmp_path: Path) -> None:
    _, expected = alone(tmp_path, gated_net(), Gated(strength=0.01), TWO_EPOCHS)
    found = Log(path=ranks / "gated0" / "log.jsonl").records()
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key in set(one) - {"phase", "seconds"}:
            assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-6), key
    assert Log(path=ranks / "gated1" / "log.jsonl").records() == []
    assert list((ranks / "gated1" / "checkpoints").iterdir()) == []


def command_rank(rank: int, folder: Path, arguments: list[str]) -> None:
    command(["train", "--output", str(folder / "run"), *arguments], folder / f"rank{rank}", small=True)


ARGUMENTS = ["--model", NET, "--epochs", "1", "--batch-size", "16", "--sync-batchnorm", "--strength", "1e-3"]


def test_the_whole_command_writes_and_speaks_once(tmp_path: Path) -> None:
    assert together(command_rank, tmp_path, ARGUMENTS) == [0, 0]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["environment"]["processes"] == 2
    assert "train epoch 1/1" in (tmp_path / "rank0.out").read_text()
    assert (tmp_path / "rank1.out").read_text() == ""
    assert len(Log(path=tmp_path / "run" / "log.jsonl").records()) == 1
    # the folder is taken now: both processes say so, and neither waits for the other for ever
    assert together(command_rank, tmp_path, ARGUMENTS) == [2, 2]
    assert "already holds a run" in (tmp_path / "rank0.err").read_text()
    assert "the first process cannot write to" in (tmp_path / "rank1.err").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "15"], "a batch of 15 cannot be shared by 2 processes in 1 pieces each"),
        (["--batch-size", "6", "--accumulate", "2"], "a batch of 6 cannot be shared by 2 processes in 2 pieces each"),
        (["--method", "plain", "--strength", "0"], "sync_batchnorm of batch norms without gates needs GPUs"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_all(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert together(command_rank, tmp_path, [*ARGUMENTS, *arguments]) == [2, 2]
    for rank in range(2):
        assert message in (tmp_path / f"rank{rank}.err").read_text()


def stop_rank(rank: int, folder: Path) -> None:
    """Only the second process gets a signal; both must stop, at the same place."""
    with joined(Hardware()) as processes:
        its_trainer = trainer(folder / str(rank), gated_net(), Method(), TWO_EPOCHS, processes=processes)
        if rank == 1:
            its_trainer.context.interrupt.signal = signal.SIGINT
        try:
            its_trainer.run()
        except StoppedError as stopped:
            (folder / f"stopped{rank}").write_text(f"{its_trainer.progress.epoch} {stopped.signal.name}")


def test_a_signal_to_one_process_stops_all(tmp_path: Path) -> None:
    assert together(stop_rank, tmp_path) == [0, 0]
    assert (tmp_path / "stopped0").read_text() == "1 SIGTERM"
    assert (tmp_path / "stopped1").read_text() == "1 SIGINT"


def test_alone_nothing_is_said() -> None:
    processes = Processes(device=torch.device("cpu"))
    sums = torch.ones(3)
    assert processes.added(sums) is sums
    assert processes.any_rank(True)
    assert not processes.any_rank(False)
    net = Net()
    assert processes.together(net) is net
    processes.wait()
    processes.share_buffers(net)


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with joined(Hardware(threads=before + 1)) as processes:
        assert torch.get_num_threads() == before + 1
        assert (processes.rank, processes.world, processes.first) == (0, 1, True)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(SparsityError, match=f"device '{name}' cannot be used"), joined(Hardware(device=name)):
        pass


def test_inputs_are_placed(tmp_path: Path) -> None:
    its_setting = run_context(tmp_path, recipe(hardware=Hardware(channels_last=True)))
    images, _ = next(small_data().train.in_order(4))
    assert its_setting.placed(images.expand(4, 3, 6, 6)).is_contiguous(memory_format=torch.channels_last)
    assert its_setting.placed(torch.zeros(4, 7)).shape == (4, 7)


def test_names_versions_and_the_machine_in_plain_data() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["diffsparse"] == diffsparse.__version__
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
