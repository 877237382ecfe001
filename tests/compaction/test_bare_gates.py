"""Gates that the user's own forward pass multiplies with: their dead channels leave."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.gates.gate import StoredGate
from tests.compaction.gated import VALUES, GatedConv, GatedNet, column
from tests.compaction.nets import same

X = torch.randn(5, 4).double()
MAPS = torch.randn(2, 3, 8, 8).double()
LIVE = [0, 3, 5, 7]


def weights(values: list[float]) -> ds.SimplexGate:
    total = sum(map(abs, values))
    return ds.SimplexGate.from_values([abs(value) / total for value in values])


@pytest.mark.parametrize("gate", [None, weights(VALUES)])
@pytest.mark.parametrize("training", [False, True])
def test_dead_channels_leave(gate: nn.Module | None, training: bool) -> None:
    model = GatedNet(gate).double().train(training)
    small = ds.compact(model, X).model
    assert (small.first.out_features, small.last.in_features) == (4, 4)
    assert type(small.gate) is StoredGate
    assert torch.equal(small.gate(), model.gate()[LIVE])
    assert {module.training for module in small.modules()} == {training}
    assert same(model, small, torch.randn(7, 4).double())
    assert ds.compact(model, X).before.params == 4 * 8 + 8 + 8 + 8 * 2 + 2


def test_a_matrix_gate() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)
            self.gate = ds.MatrixGate.from_values([[0.5, 0.0, 0.25], [0.0, 0.0, 0.0], [0.0, 1.0, 0.5]])

        def forward(self, x: Tensor) -> Tensor:
            return self.last(nn.functional.linear(self.first(x), self.gate()))

    model = Mixed().double()
    small = ds.compact(model, X).model
    assert type(small.gate) is StoredGate
    assert same(model, small, torch.randn(7, 4).double())


def test_a_gate_of_the_shape_of_the_maps() -> None:
    model = GatedConv(lambda values: values, column(VALUES)).double().eval()
    small = ds.compact(model, MAPS).model
    assert (small.first.out_channels, small.last.in_channels, tuple(small.gate().shape)) == (4, 4, (4, 1, 1))
    assert same(model, small, torch.randn(3, 3, 9, 9).double())


SPREAD = {
    "indexed": lambda values: values[:, None, None],
    "view": lambda values: values.view(1, -1, 1, 1),
    "reshape": lambda values: values.reshape(1, 8, 1, 1),
    "unsqueeze": lambda values: values.unsqueeze(-1).unsqueeze(-1),
}


@pytest.mark.parametrize("spread", SPREAD.values(), ids=SPREAD)
def test_a_gate_that_is_reshaped_stays_exact(spread) -> None:
    model = GatedConv(spread).double().eval()
    small = ds.compact(model, MAPS).model
    assert same(model, small, torch.randn(3, 3, 9, 9).double())


def test_a_gate_that_is_used_twice() -> None:
    class Twice(GatedNet):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x) * self.gate() + self.first(x * 2) * self.gate())

    model = Twice().double()
    assert same(model, ds.compact(model, X).model, torch.randn(7, 4).double())


def test_a_dead_gate() -> None:
    model = GatedNet(values=[0.0] * 8).double()
    with pytest.warns(ds.SparsityWarning, match="no longer depends on its input"):
        small = ds.compact(model, X).model
    assert same(model, small, torch.randn(7, 4).double())


def test_saved_and_loaded(tmp_path: Path) -> None:
    small = ds.compact(GatedNet().double().eval(), X)
    ds.save(small, tmp_path / "net")
    again = ds.load(tmp_path / "net", GatedNet(values=[0.5] * 8).double().eval())
    assert torch.equal(again(X), small.model(X))


def test_a_gated_file_keeps_its_gate(tmp_path: Path) -> None:
    model = GatedNet().double().eval()
    ds.save(model, tmp_path / "net")
    again = ds.load(tmp_path / "net", GatedNet(values=[0.5] * 8).double().eval())
    assert type(again.gate) is ds.SignedGate
    assert torch.equal(again(X), model(X))


def test_a_plan_on_a_fresh_instance() -> None:
    small, fresh = ds.compact(GatedNet().double(), X), GatedNet().double()
    again = ds.apply_plan(fresh, small.plan)
    assert torch.equal(again.gate(), fresh.gate()[LIVE])
    again.load_state_dict(small.model.state_dict())
    assert torch.equal(again(X), small.model(X))


def test_momentum_goes_on_and_the_values_start_fresh() -> None:
    model = GatedNet().double()
    optimizer = torch.optim.SGD(ds.parameter_groups(model, 1e-3, 1e-5), lr=0.01, momentum=0.9)
    model(X).square().sum().backward()
    optimizer.step()
    small = ds.compact(model, X)
    later = ds.slice_optimizer(optimizer, model, small)
    by_name = {group["name"]: group for group in later.param_groups}
    assert by_name["gates"]["params"] == [small.model.gate.values]
    assert by_name["gates"]["weight_decay"] == 1e-5
    assert small.model.gate.values not in later.state
    live = [i for i, value in enumerate(model.gate().tolist()) if value != 0]
    momentum = optimizer.state[model.first.weight]["momentum_buffer"]
    assert torch.equal(later.state[small.model.first.weight]["momentum_buffer"], momentum[live])
