from pathlib import Path

import pytest
import torch
from torch import nn

from diffsparse.averaging import MovingAverage
from diffsparse.checkpoint import CheckpointError, save
from diffsparse.training import Optimisation
from diffsparse.training.optimizer import make_optimizer
from diffsparse.training.snapshot import Progress, Snapshot, Trained, write_snapshot
from tests.training.examples import Net, small_data


def trained(seed: int, optimizer: str = "sgd", *, average: bool = False, last: bool = False, width: int = 6) -> Trained:
    torch.manual_seed(seed)
    model: nn.Module = Net(width)
    if last:
        model = model.to(memory_format=torch.channels_last)
    settings = Optimisation(optimizer=optimizer, learning_rate=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**seed)
    copied = MovingAverage(Net(width), 0.9) if average else None
    return Trained(model=model, optimizer=make_optimizer(model, settings), scaler=scaler, average=copied)


def stepped(thing: Trained, steps: int) -> dict[str, torch.Tensor]:
    images, labels = next(small_data().train.in_order(32))
    for _ in range(steps):
        torch.manual_seed(5)
        nn.functional.cross_entropy(thing.model(images), labels).backward()
        thing.optimizer.step()
        thing.optimizer.zero_grad()
    return thing.model.state_dict()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("last", [False, True], ids=["", "channels last"])
def test_goes_on_as_if_nothing_had_happened(optimizer: str, last: bool, tmp_path: Path) -> None:
    first = trained(0, optimizer, average=True, last=last)
    stepped(first, 2)
    state = {"factor": 0.3}
    progress = Progress(epoch=3, step=2, sums=[0.1, 1e300, 3.0], first_loss=2.5, controller=state)
    write_snapshot(tmp_path / "state.safetensors", first, progress, "retrain")
    snapshot = Snapshot.read(tmp_path / "state.safetensors")
    second = trained(1, optimizer, average=True, last=last)
    snapshot.restore(second)
    assert (snapshot.phase, snapshot.progress) == ("retrain", progress)
    assert second.scaler.get_scale() == 1.0
    assert first.average is not None
    assert second.average is not None
    for name, value in first.average.state_dict().items():
        assert torch.equal(value, second.average.state_dict()[name]), name
    for (name, one), other in zip(stepped(first, 2).items(), stepped(second, 2).values(), strict=True):
        assert torch.equal(one, other), name


def test_the_state_keeps_the_layout_of_its_parameter(tmp_path: Path) -> None:
    first, second = trained(0, last=True), trained(1, last=True)
    stepped(first, 1)
    write_snapshot(tmp_path / "state.safetensors", first, Progress(), "train")
    Snapshot.read(tmp_path / "state.safetensors").restore(second)
    buffer = second.optimizer.state[second.model.conv2.weight]["momentum_buffer"]
    assert buffer.stride() == second.model.conv2.weight.stride() != torch.empty(6, 4, 3, 3).stride()


def test_what_was_restored_can_be_written_over(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    first, second = trained(0), trained(1)
    stepped(first, 1)
    write_snapshot(path, first, Progress(), "train")
    Snapshot.read(path).restore(second)
    content = path.read_bytes()
    stepped(second, 1)
    assert path.read_bytes() == content


def test_an_optimiser_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_snapshot(path, trained(0), Progress(), "train")
    second = trained(1)
    Snapshot.read(path).restore(second)
    for one, other in zip(stepped(trained(0), 2).values(), stepped(second, 2).values(), strict=True):
        assert torch.equal(one, other)


def test_a_file_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    first = trained(0)
    stepped(first, 1)
    write_snapshot(path, first, Progress(), "train")
    with pytest.raises(
        CheckpointError, match=r"state.safetensors' does not fit this run: .* mismatch for conv2"
    ) as error:
        Snapshot.read(path).restore(trained(0, width=3))
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        Snapshot.read(path).restore(trained(0, average=True))


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_snapshot(path, trained(0), Progress(), "train")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: its content does not match the hash"):
        Snapshot.read(path)
    with pytest.raises(CheckpointError, match="there is no file"):
        Snapshot.read(tmp_path / "none.safetensors")
    save(Net(), path)
    with pytest.raises(CheckpointError, match="but not one that diffsparse-training wrote"):
        Snapshot.read(path)
