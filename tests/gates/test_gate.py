"""What every gate can do: be copied, saved, checked, found in a model and used under autocast."""

import copy
import math

import pytest
import torch
from torch import nn

from diffsparse.errors import SparsityError
from diffsparse.gates import Gate, MatrixGate, SignedGate, SimplexGate, named_gates
from diffsparse.gates.gate import checked_values, gate_dtype, values_dtype

BUILD = {
    "signed": lambda **options: SignedGate((3, 4), **options),
    "simplex": lambda **options: SimplexGate((3, 4), **options),
    "matrix": lambda **options: MatrixGate(3, 4, **options),
}
every_gate = pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)


def perturbed(gate):
    torch.manual_seed(0)
    for parameter in gate.parameters():
        parameter.detach().add_(torch.randn_like(parameter))
    return gate


def test_gate_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Gate()


@every_gate
@pytest.mark.parametrize("rgf", [None, 0.1])
def test_autocast_does_not_change_a_gate(build, rgf):
    gate = perturbed(build(rgf=rgf))
    outside = gate()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gate()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


@every_gate
def test_half_precision_is_not_used_for_parameters(build):
    assert {p.dtype for p in build(dtype=torch.float16).parameters()} == {torch.float32}
    assert build(dtype=torch.float64)().dtype == torch.float64


@every_gate
def test_deepcopy_is_independent(build):
    gate = perturbed(build(rgf=0.2))
    before = gate().detach().clone()
    twin = copy.deepcopy(gate)
    assert torch.equal(twin(), gate())
    assert twin.rgf == 0.2
    twin.alpha.detach().mul_(3)
    assert torch.equal(gate(), before)


@every_gate
def test_state_dict_round_trip(build):
    gate, other = perturbed(build()), build()
    assert not torch.equal(gate(), other())
    assert set(gate.state_dict()) == {name for name, _ in gate.named_parameters()}
    other.load_state_dict(gate.state_dict())
    assert torch.equal(gate(), other())


@every_gate
def test_trains_with_an_ordinary_optimizer(build):
    gate = build()
    optimizer = torch.optim.SGD(gate.parameters(), lr=0.1)
    target = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).softmax(1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (gate() - target).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@every_gate
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_check_finite_names_parameter_gate_and_value(build, bad):
    gate = build()
    gate.check_finite("block.gate")
    for key, parameter in gate.named_parameters():
        broken = copy.deepcopy(gate)
        dict(broken.named_parameters())[key].detach().view(-1)[-1] = bad
        with pytest.raises(SparsityError, match=f"^{key} of gate 'block.gate' must be finite numbers, got {bad}$"):
            broken.check_finite("block.gate")
        assert parameter.isfinite().all()


@every_gate
def test_repr_names_shape_and_rgf(build):
    assert "(3, 4)" in repr(build())
    assert "rgf" not in repr(build())
    assert "(3, 4), rgf=0.1" in repr(build(rgf=0.1))


@every_gate
@pytest.mark.parametrize("rgf", [-0.1, math.nan, math.inf, True, "0.1"])
def test_wrong_rgf(build, rgf):
    with pytest.raises(SparsityError, match=f"rgf must be a finite number of at least 0, got {rgf!r}"):
        build(rgf=rgf)


def test_named_gates_finds_each_gate_once():
    shared = SignedGate(2)
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.ModuleDict({"inner": SimplexGate(3), "again": shared}))
    assert [name for name, _ in named_gates(model)] == ["1", "2.inner"]
    assert list(named_gates(shared)) == [("", shared)]
    assert list(named_gates(nn.Linear(2, 2))) == []


def test_checked_values_are_detached_float64():
    source = torch.tensor([0.1, 0.2], requires_grad=True)
    values = checked_values(source)
    assert values.dtype == torch.float64
    assert not values.requires_grad
    assert torch.equal(values, source.detach().double())
    assert checked_values([1, 2]).tolist() == [1.0, 2.0]
    with pytest.raises(SparsityError, match="got -inf"):
        checked_values([[0.0, -math.inf], [math.nan, 0.0]])


def test_values_that_are_no_real_numbers_are_refused():
    for kind in (SignedGate, SimplexGate, MatrixGate):
        with pytest.raises(SparsityError, match=r"must be real numbers, got torch\.complex64"):
            kind.from_values(torch.ones(2, 2, dtype=torch.complex64))
        for wrong in ("x", [["a"]], [[1.0], [1.0, 2.0]], None):
            with pytest.raises(SparsityError, match="must be a tensor or nested lists of numbers, got"):
                kind.from_values(wrong)


def test_check_finite_calls_a_nameless_gate_by_its_type():
    gate = SignedGate(2)
    gate.beta.detach().fill_(math.nan)
    with pytest.raises(SparsityError, match="beta of gate 'SignedGate' must be finite numbers, got nan"):
        gate.check_finite("")


@every_gate
def test_can_be_made_on_the_meta_device(build):
    with torch.device("meta"):
        gate = build()
    assert {parameter.device.type for parameter in gate.parameters()} == {"meta"}
    assert gate().shape == (3, 4)


def test_dtypes_of_gates():
    assert gate_dtype(None) == torch.float32
    assert gate_dtype(torch.float16) == gate_dtype(torch.bfloat16) == torch.float32
    assert gate_dtype(torch.float64) == torch.float64
    assert values_dtype(torch.ones(2, dtype=torch.float64)) == torch.float64
    assert values_dtype(torch.ones(2, dtype=torch.bfloat16)) == torch.float32
    assert values_dtype(torch.ones(2, dtype=torch.int64)) == torch.float32
    assert values_dtype([1.0]) == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_keeps_wide_gates(dtype):
    model = torch.nn.Sequential(torch.nn.Linear(4, 256), SignedGate(256)).to(dtype)
    assert model[0].weight.dtype == dtype
    assert {parameter.dtype for parameter in model[1].parameters()} == {torch.float32}
    assert (model[1]() - 0.5).abs().max() < 1e-6
    assert model.double()[1].alpha.dtype == torch.float64
