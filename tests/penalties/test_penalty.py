"""The loss term against a plain loop over gates, entries and groups."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from diffsparse import (
    L1,
    ExclusiveL12,
    GradualStrength,
    GroupL21,
    Lp,
    MatrixGate,
    Penalty,
    SignedGate,
    SimplexGate,
    SparseBatchNorm1d,
    SparseSum,
    SparsityError,
    sparsify,
)


class Mixed(nn.Module):
    def __init__(self, rgf=None, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)

        def values(*shape):
            return (torch.randn(*shape, dtype=dtype) * (torch.rand(*shape) > 0.4)).requires_grad_(False)

        self.first = SignedGate.from_values(values(7), rgf=rgf)
        self.second = SignedGate.from_values(values(5), rgf=rgf)
        self.one = SignedGate.from_values(values(1) + 1, rgf=rgf)
        self.columns = SignedGate.from_values(values(4, 5), dim=0, rgf=rgf)
        self.mix = SparseSum(
            [nn.Identity() for _ in range(4)],
            SimplexGate.from_values(torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=dtype), rgf=rgf),
        )
        self.matrix = MatrixGate.from_values(values(4, 5).abs() + torch.eye(4, 5, dtype=dtype), rgf=rgf)

    def weighted_rows(self):
        """Every competition group as a list of scalars, with the share at which it counts."""
        rows = [(1.0, gate()) for gate in (self.first, self.second, self.one, self.mix.gate)]
        columns, matrix = self.columns(), self.matrix()
        rows += [(1.0, columns[:, j]) for j in range(5)]
        rows += [(0.5, matrix[i]) for i in range(4)] + [(0.5, matrix[:, j]) for j in range(5)]
        return [(share, list(row.unbind())) for share, row in rows]


def loop_l21(row):
    groups = [row[start : start + 3] for start in range(0, len(row), 3)]
    return sum(sum(x * x for x in group if x != 0).sqrt() for group in groups if any(x != 0 for x in group))


def loop_lp(row):
    alive = [x.abs().sqrt() for x in row if x != 0]
    return sum(alive) ** 2 if alive else 0.0


NORMS = {
    "l1": (L1(), lambda row: sum(x.abs() for x in row)),
    "l12": (ExclusiveL12(), lambda row: sum(x.abs() for x in row) ** 2 / 2),
    "lp": (Lp(0.5), loop_lp),
    "l21": (GroupL21(size=3), loop_l21),
}


@pytest.mark.parametrize(("norm", "loop"), NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("rgf", [None, 0.1])
def test_penalty_is_the_sum_over_gates(norm, loop, rgf):
    model = Mixed(rgf)
    expected = 0.3 * sum(share * loop(row) for share, row in model.weighted_rows())
    result = Penalty(model, norm, strength=0.3)()
    torch.testing.assert_close(result, expected)
    parameters = list(model.parameters())
    for mine, reference in zip(
        torch.autograd.grad(result, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(mine, reference)


def total(*gates):
    return sum(gate().abs().sum().item() for gate in gates)


def test_only_chooses_by_pattern_type_predicate_and_sequence():
    model = Mixed()
    for only, gates in [
        ("first", [model.first]),
        ("mix", [model.mix.gate]),
        (SimplexGate, [model.mix.gate]),
        (lambda name, module: name.startswith("s"), [model.second]),
        (["first", MatrixGate], [model.first, model.matrix]),
    ]:
        penalty = Penalty(model, strength=1, only=only)
        assert list(penalty.gates.values()) == gates
        assert penalty().item() == pytest.approx(total(*gates))


def test_a_shared_gate_counts_once():
    gate = SignedGate(4)
    assert Penalty(nn.ModuleList([gate, gate]), strength=1)().item() == pytest.approx(2)


def test_says_when_there_are_no_gates():
    with pytest.raises(SparsityError, match=r"Linear has no gates; call diffsparse\.sparsify"):
        Penalty(nn.Linear(2, 2), strength=1)
    with pytest.raises(SparsityError, match="the selection 'nowhere' chooses no gate of Mixed"):
        Penalty(Mixed(), strength=1, only="nowhere")


class Operations(TorchDispatchMode):
    """Counts the kernels that run; views and detaches are free."""

    free = ("view", "detach", "alias", "unsqueeze", "expand", "reshape", "transpose", "select", "slice")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if not any(word in name for word in self.free):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def kernels(call):
    with Operations() as operations:
        call()
    return len(operations.names)


@pytest.mark.parametrize("norm", [norm for norm, _ in NORMS.values()], ids=NORMS)
def test_cost_does_not_grow_with_the_number_of_gates(norm):
    counts = []
    for layers in (20, 60):
        model = nn.ModuleList(SparseBatchNorm1d(4 + i % 7) for i in range(layers))
        penalty = Penalty(model, norm, strength=1)
        penalty()
        counts.append(kernels(penalty))
        one_by_one = kernels(lambda layers=model: [norm(layer.gate()) for layer in layers])
        assert one_by_one > 5 * counts[-1]
    assert counts[0] == counts[1] <= 40


def test_follows_the_model_to_another_dtype():
    model = Mixed(dtype=torch.float32)
    penalty = Penalty(model, strength=1)
    before = penalty()
    model.to(torch.float64)
    assert (before.dtype, penalty().dtype) == (torch.float32, torch.float64)
    assert penalty().item() == pytest.approx(before.item(), rel=1e-6)
    model.first.float()
    assert penalty().item() == pytest.approx(before.item(), rel=1e-6)


def test_follows_a_gate_whose_gradient_flow_changes():
    model = nn.ModuleList([SignedGate.from_values([0.5, 0.0]), SignedGate.from_values([0.5, 0.0])])
    penalty = Penalty(model, strength=1)
    penalty()
    model[1].rgf = 0.1
    penalty()
    assert [[gate.rgf for gate in batch.gates] for batch in penalty._batched()[0]] == [[None], [0.1]]


def test_stays_in_float32_under_autocast():
    penalty = Penalty(Mixed(dtype=torch.float32), ExclusiveL12(), strength=1)
    with torch.autocast("cpu", torch.bfloat16):
        inside = penalty()
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, penalty())


def test_follows_the_schedule_and_resumes():
    def make():
        return Penalty(SignedGate(4), schedule=GradualStrength(0.0, 1.0, 1, 2))

    penalty, seen = make(), []
    for _ in range(5):
        seen.append(penalty().item())
        if penalty.controller.epoch == 2:
            saved = penalty.state_dict()
        penalty.step()
    assert seen == pytest.approx([2 * x for x in (0, 0, 0.875, 1, 1)])
    resumed = make()
    resumed.load_state_dict(saved)
    assert resumed.strength == 0.875
    resumed.step()
    assert resumed.strength == 1


def test_step_can_be_a_fraction_of_an_epoch():
    penalty = Penalty(SignedGate(4), schedule=GradualStrength(0.0, 1.0, 0, 1))
    penalty.step(0.5)
    assert penalty.strength == 0.875


def test_a_fixed_strength_stays_and_can_be_set():
    penalty = Penalty(SignedGate(4), strength=0.5)
    penalty.step()
    assert penalty().item() == pytest.approx(1)
    penalty.strength = 1
    assert penalty().item() == pytest.approx(2)
    other = Penalty(SignedGate(4), strength=0.1)
    other.load_state_dict(penalty.state_dict())
    assert other.strength == 1
    with pytest.raises(SparsityError, match="the state of a FixedStrength is a dictionary of"):
        other.load_state_dict(Penalty(SignedGate(4), schedule=GradualStrength(0, 1, 0, 1)).state_dict())


@pytest.mark.parametrize("strength", [-1e-5, math.nan, math.inf, "1e-5", True])
def test_refuses_a_bad_strength(strength):
    with pytest.raises(SparsityError, match="strength must be a finite number of at least 0"):
        Penalty(SignedGate(4), strength=strength)


@pytest.mark.parametrize("strength", [np.float32(0.5), np.int64(1), Fraction(1, 2)], ids=repr)
def test_takes_any_real_number(strength):
    assert Penalty(SignedGate(4), strength=strength).strength == float(strength)


def test_a_function_is_asked_about_gates_alone():
    model, asked = sparsify(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))), []
    penalty = Penalty(model, strength=1, only=lambda name, gate: asked.append((name, gate)) or name.startswith("1"))
    assert asked == [("1.gate", model[1].gate), ("2.gate", model[2].gate)]
    assert list(penalty.gates) == ["1.gate"]


@pytest.mark.parametrize("state", [{}, {"strength": 1}, None, {"value": "x", "epoch": 0.0}], ids=str)
def test_refuses_a_foreign_state(state):
    penalty = Penalty(SignedGate(4), strength=0.5)
    with pytest.raises(SparsityError, match=r"the state of a FixedStrength is|strength must be"):
        penalty.load_state_dict(state)
    assert penalty.strength == 0.5


def test_refuses_other_mistakes():
    gate = SignedGate(4)
    with pytest.raises(SparsityError, match=r"model must be a torch\.nn\.Module, got 'x'"):
        Penalty("x", strength=1)
    with pytest.raises(SparsityError, match=r"schedule must be a controller such as GradualStrength, got 0\.1"):
        Penalty(gate, schedule=0.1)
    with pytest.raises(SparsityError, match=r"'SignedGate' has groups of 4"):
        Penalty(gate, GroupL21(groups=[[9]]), strength=1)
    with pytest.raises(SparsityError, match=r"norm must be an instance of Norm, such as L1.*'l1'"):
        Penalty(gate, "l1", strength=1)
    for arguments in ({}, {"strength": 1, "schedule": GradualStrength(0, 1, 0, 1)}):
        with pytest.raises(SparsityError, match="either a strength or a schedule"):
            Penalty(gate, **arguments)
    with pytest.raises(SparsityError, match=r"entry 4, but 'second'.* 3 entries"):
        Penalty(nn.ModuleDict({"first": SignedGate(5), "second": SignedGate(3)}), GroupL21(groups=[[0, 4]]), strength=1)


def test_names_the_gate_that_holds_nan():
    model = sparsify(nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3)))
    model[1].gate.alpha.detach()[1] = math.nan
    with pytest.raises(SparsityError, match=r"alpha of gate '1\.gate' must be finite numbers, got nan"):
        Penalty(model, strength=1)
