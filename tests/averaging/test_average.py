"""The average follows an independent slow formula, keeps zeros, and goes on bit for bit."""

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.gates import Gate, named_gates
from diffsparse.nn.batchnorm import SparseBatchNorm
from diffsparse.wiring.stage import WiredStage
from tests.training.examples import Net

DECAYS = [1 / 10, 2 / 11, 3 / 12, 0.3, 0.3, 0.3]
"""Of the first updates with decay 0.3."""


def changed(model: nn.Module, step: int) -> None:
    """Other numbers in every tensor; some gates drop."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                tensor.fill_(step)
            elif name.endswith("beta"):
                tensor.fill_(-1.5)
            else:
                tensor.copy_(torch.rand(tensor.shape, generator=generator))


def slow_gate(alpha: Tensor, beta: Tensor) -> Tensor:
    threshold = sum(abs(entry) for entry in alpha.tolist()) / (1 + math.exp(-float(beta)))
    return torch.tensor([math.copysign(max(abs(e) - threshold, 0.0), e) for e in alpha.tolist()], dtype=torch.float64)


def slow_values(model: nn.Module) -> dict[str, Tensor]:
    """What is averaged of a network of sparse batch norms, written down apart from the package."""
    state = {name: tensor.double() for name, tensor in model.state_dict().items()}
    norms = [name.removesuffix(".gate.alpha") for name in state if name.endswith(".gate.alpha")]
    for name in norms:
        state[f"{name}.gate"] = slow_gate(state.pop(f"{name}.gate.alpha"), state.pop(f"{name}.gate.beta"))
        key = f"{name}.statistics.running_var"
        state[key] = (state[key] + 1e-5).log()
    return state


def test_follows_the_slow_formula() -> None:
    model = ds.sparsify(Net(), start=0.5)
    average = ds.MovingAverage(model, decay=0.3)
    expected, zeros = slow_values(model), 0
    for step, decay in enumerate(DECAYS):
        changed(model, step)
        average.update(model)
        for name, value in slow_values(model).items():
            expected[name] = decay * expected[name] + (1 - decay) * value
            if name.endswith(".gate"):
                expected[name][value == 0] = 0
                zeros += int((value == 0).sum())
    assert zeros > 5
    for name, value in slow_values(average.model).items():
        if name.endswith("tracked"):
            assert value == 5
        else:
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)
    assert average.updates == 6


def test_a_model_without_gates_is_averaged_plainly() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    average = ds.MovingAverage(model, decay=0.3)
    expected = {name: tensor.double() for name, tensor in copy.deepcopy(model.state_dict()).items()}
    for step, decay in enumerate(DECAYS):
        changed(model, step)
        average.update(model)
        expected = {name: decay * expected[name] + (1 - decay) * t for name, t in model.state_dict().items()}
    average.calibrate(iter(()))
    for name, tensor in average.model.state_dict().items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_is_a_network_of_its_own_without_a_graph() -> None:
    model = ds.sparsify(Net(), start=0.5)
    model.head.bias.requires_grad_(False)
    average = ds.MovingAverage(model, decay=0.9)
    before = copy.deepcopy(model.state_dict())
    changed(average.model, 0)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    model(torch.randn(4, 1, 6, 6)).sum().backward()
    average.update(model)
    assert average.model.head.weight.requires_grad
    assert not average.model.head.bias.requires_grad
    for parameter in average.model.parameters():
        assert parameter.is_leaf
        assert parameter.grad is None
    assert not any(tensor.requires_grad for tensor in average._means.values())


class Gated(nn.Module):
    """Calls one gate, whatever it is."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = x.sum() * self.gate()
        return product


MASK = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.3
GATES: dict[str, Any] = {
    "signed": lambda: ds.SignedGate(9),
    "signed groups": lambda: ds.SignedGate((3, 4), dim=0),
    "one entry": lambda: ds.SignedGate(1),
    "simplex": lambda: ds.SimplexGate((2, 5)),
    "simplex of one": lambda: ds.SimplexGate((2, 1)),
    "matrix": lambda: ds.MatrixGate(3, 4),
    "matrix of one column": lambda: ds.MatrixGate(3, 1),
    "adjacency": lambda: ds.SparseAdjacency(6),
    "masked": lambda: ds.SparseAdjacency(6, mask=MASK),
    "no threshold": lambda: ds.SparseAdjacency(6, mask=MASK, threshold=False),
}


def scrambled(gate: Gate, step: int, beta: float = -2.0) -> None:
    generator = torch.Generator().manual_seed(step)
    gate.alpha.detach().copy_(torch.randn(gate.alpha.shape, generator=generator))
    for name, parameter in gate.named_parameters():
        if name != "alpha":
            parameter.detach().fill_(beta)


@pytest.mark.parametrize("make", GATES.values(), ids=GATES)
def test_every_kind_of_gate_keeps_zeros_and_averages_values(make: Any) -> None:
    model = Gated(make())
    average = ds.MovingAverage(model, decay=0.9)
    mean = model.gate().detach().double()
    for step in range(5):
        scrambled(model.gate, step)
        average.update(model)
        decay, value = (1 + step) / (10 + step), model.gate().detach().double()
        mean = (decay * mean + (1 - decay) * value) * (value != 0)
    found = average.model.gate().detach()
    assert torch.equal(found == 0, model.gate() == 0)
    if isinstance(model.gate, ds.SimplexGate):
        mean = mean / mean.sum(-1, keepdim=True).clamp_min(1e-30)
    # a graph is balanced again, which takes rows and columns without entries out of proportion
    rough = 0.3 if isinstance(model.gate, ds.SparseAdjacency) else 1e-5
    torch.testing.assert_close(found.double(), mean, rtol=rough, atol=rough)


@pytest.mark.parametrize("name", [name for name in GATES if name not in {"one entry", "no threshold"}])
def test_a_gate_that_has_closed_stays_closed(name: str) -> None:
    model = Gated(GATES[name]())
    average = ds.MovingAverage(model)
    scrambled(model.gate, 0, beta=50.0)
    assert not model.gate().any()
    average.update(model)
    assert not average.model.gate().any()
    scrambled(model.gate, 1)
    average.update(model)
    assert torch.equal(average.model.gate() == 0, model.gate() == 0)


def pressed(model: nn.Module, x: Tensor, steps: int, *averages: Any, strength: float = 0.05) -> None:
    """Train with a strong penalty, on labels that follow from the inputs."""
    penalty = ds.Penalty(model, ds.L1(), strength)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
    labels = (x.flatten(1).sum(1) > 0).long()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), labels) + penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for average in averages:
            average.update(model)


def trained(seed: int = 0, steps: int = 60) -> tuple[nn.Module, ds.MovingAverage[nn.Module], Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(64, 1, 6, 6)
    model: nn.Module = ds.sparsify(Net(width=24), start=0.5)
    average = ds.MovingAverage(model, 0.9)
    pressed(model, x, steps, average)
    return model, average, x


def test_compaction_of_the_average_removes_what_that_of_the_model_removes() -> None:
    model, average, x = trained()
    small, other = ds.compact(model.eval(), x[:2]), ds.compact(average.model.eval(), x[:2])
    assert small.model.conv2.out_channels < 24
    assert (small.plan.tensors, small.plan.layers) == (other.plan.tensors, other.plan.layers)


class Wired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage, self.head = WiredStage(2, 6, groups=2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stage(x).mean((2, 3)))
        return logits


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = ds.SparseSum([nn.Linear(72, 4) for _ in range(5)], ds.SignedGate(5))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mix(x.flatten(1)).relu())
        return logits


@pytest.mark.parametrize("make", [Wired, Summed])
def test_wired_stages_and_sums_keep_zeros_and_follow(make: type[nn.Module]) -> None:
    torch.manual_seed(1)
    model, x = make(), torch.randn(64, 2, 6, 6)
    average = ds.MovingAverage(model, 0.9)
    pressed(model, x, 30, average, strength=1.0 if make is Wired else 0.3)
    zeros = {name: gate() == 0 for name, gate in named_gates(model)}
    assert any(zero.any() for zero in zeros.values())
    for name, gate in named_gates(average.model):
        assert torch.equal(gate() == 0, zeros[name])
    small = ds.compact(model, x[:2])
    assert small.plan.layers
    wanted = average.model.eval()(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ds.SparsityWarning)
        average.follow(small)
    torch.testing.assert_close(average.model.eval()(x), wanted, rtol=1e-4, atol=1e-4)
    average.update(small.model)


def test_goes_on_bit_for_bit() -> None:
    model, average, x = trained(steps=10)
    state, its_model = copy.deepcopy(average.state_dict()), copy.deepcopy(model)
    other = ds.MovingAverage(ds.sparsify(Net(width=24), start=0.5), 0.9)
    other.load_state_dict(state)
    assert other.updates == 10
    for one, its in ((average, model), (other, its_model)):
        one.calibrate([x])
        torch.manual_seed(3)
        pressed(its, x, 5, one)
    for (name, tensor), again in zip(average.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(tensor, again), name


def test_a_copy_is_independent() -> None:
    model, average, x = trained(steps=5)
    before = copy.deepcopy(average.state_dict())
    other = copy.deepcopy(average)
    other.calibrate([x])
    changed(model, 3)
    other.update(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in average.state_dict().items())
    average.calibrate([x])
    average.update(model)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in average.state_dict().items())


def test_looking_at_the_average_does_not_change_it() -> None:
    results = []
    for looks in (False, True):
        torch.manual_seed(0)
        model, average = ds.sparsify(Net(), start=0.5), None
        average = ds.MovingAverage(model, 0.5)
        for step in range(4):
            changed(model, step)
            average.update(model)
            if looks:
                assert average.model is average.model
        results.append(average.state_dict())
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_wrappers_dtypes_and_new_tensors() -> None:
    model = ds.sparsify(Net(), start=0.5).to(torch.bfloat16)
    average = ds.MovingAverage(nn.DataParallel(model), 0.5)
    assert type(average.model) is Net
    average.update(nn.DataParallel(model))
    kinds = {name: tensor.dtype for name, tensor in average.model.state_dict().items()}
    assert kinds == {name: tensor.dtype for name, tensor in model.state_dict().items()}
    assert {torch.bfloat16, torch.float32, torch.int64} == set(kinds.values())


def test_tensors_may_become_others_between_updates() -> None:
    model = ds.sparsify(Net(), start=0.5)
    average = ds.MovingAverage(model, 0.0)
    average.update(model)
    model.head.weight = nn.Parameter(torch.ones_like(model.head.weight))
    model.head.bias.data = torch.ones_like(model.head.bias)
    # gives the averaged network new buffers
    average.model.double()
    model.bn2.running_mean.fill_(3.0)
    average.update(model)
    assert average.model.head.weight.dtype == torch.float64
    for value in (average.model.head.weight, average.model.head.bias, average.model.bn2.running_mean / 3):
        assert torch.equal(value, torch.ones_like(value))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_average_on_another_device() -> None:
    model = ds.sparsify(Net(), start=0.5)
    average = ds.MovingAverage(model, 0.0)
    average.update(model.cuda())
    assert average.model.head.weight.device.type == "cpu"


def test_mistakes_are_explained() -> None:
    with pytest.raises(ds.SparsityError, match=r"model must be a torch.nn.Module"):
        ds.MovingAverage(3)  # type: ignore[type-var]
    with pytest.raises(ds.SparsityError, match="decay must be a finite number of at least 0 and of at most 1, got 2"):
        ds.MovingAverage(Net(), 2)
    with pytest.raises(ds.SparsityError, match=r"'0.weight' is lazy and has no size yet"):
        ds.MovingAverage(nn.Sequential(nn.LazyLinear(2)))
    average = ds.MovingAverage(Net())
    with pytest.raises(
        ds.SparsityError, match=r"'bn2.bias' has shape \(3,\), in the average \(6,\); .* follow\(small\)"
    ):
        average.update(Net(width=3))
    with pytest.raises(ds.SparsityError, match=r"'bn1.num_batches_tracked' is missing"):
        average.update(ds.sparsify(Net()))
    assert average.updates == 0
    with pytest.raises(ds.SparsityError, match=r"the state does not fit this average: 'model.conv2.weight' has shape"):
        average.load_state_dict(ds.MovingAverage(Net(width=3)).state_dict())
    with pytest.raises(ds.SparsityError, match="follow needs what compact returned"):
        average.follow(Net())  # type: ignore[arg-type]
    with pytest.raises(ds.SparsityError, match="calibrate needs at least one batch, got none"):
        average.calibrate([])
    with pytest.raises(ds.SparsityError, match="count must be a whole number of at least 1"):
        average.calibrate([torch.zeros(2, 1, 6, 6)], 0)
    assert repr(average) == "MovingAverage(Net, decay=0.999, 0 updates)"


def test_follows_a_model_that_becomes_small() -> None:
    model, average, x = trained()
    wanted = average.model.eval()(x)
    small = ds.compact(model, x[:2])
    assert 0 < small.model.conv2.out_channels < 24
    with pytest.raises(ds.SparsityError, match="if the model has become small, call follow"):
        average.update(small.model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ds.SparsityWarning)
        average.follow(small)
    assert average.updates == 60
    torch.testing.assert_close(average.model.eval()(x), wanted, rtol=1e-4, atol=1e-5)
    average.update(small.model.train())
    assert average.updates == 61


def test_gates_that_moved_since_the_last_update_are_cut_as_the_model_was() -> None:
    model, average, x = trained(steps=10)
    norm = model.bn2
    assert isinstance(norm, SparseBatchNorm)
    before = norm.gate().detach()
    dead = (before == 0).nonzero().flatten().tolist()
    values = before.clone()
    values[:5] = 0
    values[dead] = 0.25
    norm.gate.set_values(values)
    small = ds.compact(model, x[:2])
    means = average._means["bn2.gate"].clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ds.SparsityWarning)
        average.follow(small)
    kept = values.nonzero().flatten()
    expected = torch.where(means == 0, values, means)[kept]
    torch.testing.assert_close(average.model.bn2.weight.detach(), expected, rtol=1e-4, atol=1e-5)


def test_starts_anew_if_zeros_without_gates_made_the_model_small() -> None:
    torch.manual_seed(0)
    model, x = ds.sparsify(Net(), only="bn2", start=0.5), torch.randn(64, 1, 6, 6)
    average = ds.MovingAverage(model, 0.9)
    pressed(model, x, 3, average)
    with torch.no_grad():
        model.bn1.weight[0], model.bn1.bias[0] = 0, 0
    small = ds.compact(model, x[:2])
    assert small.model.conv1.out_channels == 3
    with pytest.warns(ds.SparsityWarning, match="it starts anew from the small model"):
        average.follow(small)
    assert average.updates == 0
    for name, tensor in small.model.state_dict().items():
        assert torch.equal(tensor, average.model.state_dict()[name])
    average.update(small.model)


class Shifted(nn.Module):
    """Dead channels of the branch are constants between live channels of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.gated, self.norm = nn.BatchNorm1d(6), nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        return self.head(x * self.norm(self.gated(self.inner(x))))


@pytest.mark.parametrize("shifts", [(0.3, 0.3), (0.3, 0.5)])
@pytest.mark.parametrize("later", [(0.4, 0.4), (0.4, 0.6)])
def test_constants_of_dead_channels_may_differ(shifts: tuple[float, float], later: tuple[float, float]) -> None:
    torch.manual_seed(0)
    model, x = ds.sparsify(Shifted(), only="gated", start=1.0).eval(), torch.randn(8, 3)
    with torch.no_grad():
        model.gated.gate.set_values(torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]))
        model.norm.bias[[1, 4]] = torch.tensor(shifts)
    average = ds.MovingAverage(model, 0.5)
    average.update(model)
    with torch.no_grad():
        model.norm.bias[[1, 4]] = torch.tensor(later)
    small = ds.compact(model, x)
    assert small.model.inner.out_features == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error", ds.SparsityWarning)
        average.follow(small)
    for _ in range(40):
        average.update(small.model)
    torch.testing.assert_close(average.model.eval()(x), small.model(x))
