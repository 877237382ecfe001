"""The peer as a baseline: what it reaches, and how its failures are told."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.measuring import measure
from diffsparse.methods import Cut, Method, TorchPruning
from diffsparse.models import PreResNet
from tests.methods.tiny import EXAMPLE, accuracy, net, spread, state, train, unchanged


def test_a_missing_library_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(ds.SparsityError, match="pip install torch-pruning"):
        TorchPruning(target=0.5).prepare(net())


def test_refuses_targets_that_make_no_sense() -> None:
    with pytest.raises(ds.SparsityError, match="torch-pruning needs either"):
        TorchPruning()
    with pytest.raises(ds.SparsityError, match="target must be"):
        TorchPruning(target=0.0)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_pruning")
    # about one channel of the nets here at a time
    monkeypatch.setattr("diffsparse.methods.torch_pruning.STEP", 0.01)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return spread(PreResNet(8, num_classes=4, width=8, in_channels=1))


def share(cut: Cut, model: nn.Module) -> float:
    return measure(cut.model, EXAMPLE, latency=False).macs / measure(model, EXAMPLE, latency=False).macs


@pytest.mark.parametrize("wanted", [0.7, 0.3])
@pytest.mark.usefixtures("library")
def test_macs_are_as_asked(wanted: float) -> None:
    model = wide()
    before = state(model)
    with torch.no_grad():
        cut = TorchPruning(macs=wanted).cut(model, EXAMPLE)
    # a channel of the first stage, coupled over its blocks, is a twentieth of this little net
    assert wanted - 0.05 <= share(cut, model) <= wanted
    assert cut.compacted is None
    assert cut.model(EXAMPLE).shape == (1, 4)
    assert cut.model.training
    assert unchanged(model, before)
    left = sum(norm.num_features for norm in cut.model.modules() if isinstance(norm, nn.BatchNorm2d))
    assert (cut.removed.zero, cut.removed.total) == (120 - left, 120)


@pytest.mark.usefixtures("library")
def test_all_costs_that_were_asked_for_hold() -> None:
    model = wide()
    whole = measure(model, EXAMPLE, latency=False)
    cost = measure(TorchPruning(macs=0.9, params=0.4).cut(model, EXAMPLE).model, EXAMPLE, latency=False)
    assert 0.3 * whole.params < cost.params <= 0.4 * whole.params
    cost = measure(TorchPruning(bytes=whole.bytes // 2).cut(model, EXAMPLE).model, EXAMPLE, latency=False)
    assert cost.bytes <= whole.bytes // 2
    assert TorchPruning(macs=1.0).cut(model, EXAMPLE).removed.zero == 0


@pytest.mark.usefixtures("library")
def test_share_of_channels_is_as_asked() -> None:
    model = wide()
    cut = TorchPruning(target=0.5).cut(model, EXAMPLE)
    # outputs that can go by themselves or together: the stem with its block, and two for each other stage
    layers = [*(block[0].conv1 for block in cut.model.stages), cut.model.stem]
    layers += [cut.model.stages[1][0].conv2, cut.model.stages[2][0].conv2]
    assert abs(sum(layer.out_channels for layer in layers) - 56) <= 1


@pytest.mark.usefixtures("library")
def test_cut_trains_again() -> None:
    method = TorchPruning(macs=0.4)
    model = train(method.prepare(net()), method)
    cut = method.cut(model, EXAMPLE)
    assert not cut.model.training
    before = accuracy(cut.model)
    assert accuracy(train(cut.model, Method(), steps=30)) > max(before, 0.5)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"macs": 1e-6}, r"stopped at \d\.\d% of the MACs"),
        ({"target": 1.0}, r"removed \d+\.\d% of the channels"),
    ],
)
@pytest.mark.usefixtures("library")
def test_falling_short_is_told(targets: dict[str, float], message: str) -> None:
    with pytest.raises(ds.SparsityError, match=f"torch-pruning {message}.*short of .*a channel of every layer"):
        TorchPruning(**targets).cut(net(), EXAMPLE)


class FixedShape(nn.Module):
    """Sizes written into the forward pass, which the library does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.classifier = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        return self.classifier(x.view(len(x), 2, 4, -1).mean(-1).reshape(-1, 8))


class SideHead(nn.Module):
    """The layer called last is not the one that gives the output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.classifier, self.side = nn.Conv2d(1, 8, 3), nn.Linear(8, 6), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.classifier(self.conv(x).mean((2, 3)))
        self.side(x.mean((2, 3)))
        return logits


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3, groups=4)
        self.last = nn.Conv2d(16, 16, 3, groups=2)
        self.classifier = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.last(self.conv(self.stem(x))).mean((2, 3)))


@pytest.mark.parametrize(
    ("model", "target", "message"),
    [
        (FixedShape(), 0.5, "left a FixedShape that does not run: RuntimeError"),
        (SideHead(), 0.5, r"changed the output of SideHead from shape \(1, 6\) to \(1, \d\)"),
        (Grouped(), 1.0, "failed on Grouped: IndexError"),
        (nn.Flatten(), 0.5, "Flatten has no convolution and no linear layer"),
    ],
)
@pytest.mark.usefixtures("library")
def test_failures_are_told(model: nn.Module, target: float, message: str) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        TorchPruning(target=target).cut(model, EXAMPLE)
