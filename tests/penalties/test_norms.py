"""Norms against slow loops over numbers, their gradients at and away from zero, and their proximal operators."""

import math

import pytest
import torch

from diffsparse import L1, ExclusiveL12, GroupL21, Lp, MatrixGate, SignedGate, SimplexGate, SparsityError
from diffsparse.functional import balanced_normalize, matrix_threshold, simplex_threshold

EXPLICIT = [[0, 4], [1], [2, 6, 5]]


def by_size(size, n):
    return [list(range(start, min(start + size, n))) for start in range(0, n, size)]


def slow_l1(row):
    return sum(abs(x) for x in row)


def slow_l12(row):
    return 0.5 * slow_l1(row) ** 2


def slow_lp(p):
    return lambda row: sum(abs(x) ** p for x in row if x) ** (1 / p)


def slow_l21(groups):
    return lambda row: sum(math.sqrt(sum(row[i] ** 2 for i in group)) for group in groups)


CASES = {
    "l1": (L1(), slow_l1),
    "l12": (ExclusiveL12(), slow_l12),
    "lp0.5": (Lp(0.5), slow_lp(0.5)),
    "lp1": (Lp(1.0), slow_lp(1.0)),
    "lp3": (Lp(3.0), slow_lp(3.0)),
    "l21-size3-partial": (GroupL21(size=3), slow_l21(by_size(3, 7))),
    "l21-size1": (GroupL21(size=1), slow_l1),
    "l21-size-over-n": (GroupL21(size=50), slow_l21([range(7)])),
    "l21-explicit": (GroupL21(groups=EXPLICIT), slow_l21(EXPLICIT)),
}
each_norm = pytest.mark.parametrize("norm", [norm for norm, _ in CASES.values()], ids=CASES)


def random_rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("norm", "slow"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 7)])
def test_value_is_that_of_the_slow_loop(norm, slow, shape):
    a = random_rows(*shape)
    a[a.abs() < 0.5] = 0
    assert (a == 0).any()
    expected = sum(slow(row) for row in a.reshape(-1, 7).tolist())
    result = norm(a)
    assert result.shape == ()
    assert result.item() == pytest.approx(expected, rel=1e-12)
    assert norm(torch.zeros(shape)).item() == 0


@each_norm
def test_gradcheck_away_from_zero(norm):
    a = random_rows(3, 7)
    a = (a.sign() * (a.abs() + 0.2)).requires_grad_()
    assert torch.autograd.gradcheck(norm, a)


def test_lp_bounds_on_the_simplex():
    assert Lp(0.5)(torch.tensor([1.0, 0.0, 0.0])).item() == 1
    assert Lp(0.5)(torch.full((4,), 0.25)).item() == pytest.approx(4)


@pytest.mark.parametrize("norm", [*(n for n, _ in CASES.values()), Lp(0.1), Lp(10.0)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_finite_everywhere_and_zero_at_zero(norm, dtype):
    tiny = torch.finfo(dtype).tiny
    ladder = torch.logspace(-45, 0, 200, dtype=dtype)
    rows = [torch.zeros(7), torch.tensor([0, 0, 0, 1.0, 2, 3, 4]), torch.tensor([tiny, 0, -tiny, 0, 0, 0, 0])]
    rows += [x * torch.tensor([1.0, 0, 0, 0, 0, 0, 0], dtype=dtype) for x in ladder]
    a = torch.stack([row.to(dtype) for row in rows]).requires_grad_()
    norm(a).backward()
    assert torch.isfinite(a.grad).all()
    assert (a.grad[a == 0] == 0).all()


@each_norm
@pytest.mark.parametrize("rgf", [None, 0.1])
@pytest.mark.parametrize("all_dropped", [False, True])
def test_finite_gradients_through_normalised_gates(norm, rgf, all_dropped):
    simplex = SimplexGate.from_values([0.5, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0], rgf=rgf)
    values = torch.rand(7, 7, generator=torch.Generator().manual_seed(1)) + 0.5
    values[values < 0.9] = 0
    values[2], values[:, 5] = 0, 0
    matrix = MatrixGate.from_values(values, rgf=rgf)
    if all_dropped:
        simplex.beta.detach().fill_(5)
        matrix.beta_row.detach().fill_(5)
    for gate, a in ((simplex, simplex()), (matrix, balanced_normalize(matrix()))):
        assert (a == 0).any()
        norm(a).backward()
        assert all(torch.isfinite(p.grad).all() for p in gate.parameters())


def test_lp_gradcheck_through_normalisation_with_dropped_entries():
    alpha = torch.tensor([0.0, -0.5, -4.0, 0.3, -5.0], dtype=torch.float64, requires_grad=True)
    beta = torch.tensor(-2.0, dtype=torch.float64, requires_grad=True)
    assert (simplex_threshold(alpha, beta) == 0).sum() == 2
    assert torch.autograd.gradcheck(lambda a, b: Lp(0.5)(simplex_threshold(a, b)), (alpha, beta))

    square = random_rows(4, 4).requires_grad_()
    b = torch.full((4,), -2.5, dtype=torch.float64, requires_grad=True)

    def balanced(x, row):
        return balanced_normalize(matrix_threshold(x, row, row), iterations=5)

    assert 3 < (balanced(square, b) == 0).sum() < 12
    assert torch.autograd.gradcheck(lambda x, row: Lp(0.5)(balanced(x, row)), (square, b))


def gate_gradients(make, rgf, loss):
    gate = make(rgf)
    loss(gate()).backward()
    return torch.cat([p.grad.flatten() for p in gate.parameters()])


@each_norm
@pytest.mark.parametrize(
    "make",
    [
        lambda rgf: SignedGate.from_values([0.9, 0.0, -0.4, 0.0, 0.2, 0.0, 0.0], rgf=rgf),
        lambda rgf: MatrixGate.from_values(torch.eye(7) + torch.eye(7).roll(1, 0), rgf=rgf),
    ],
    ids=["signed", "matrix"],
)
def test_rectified_flow_carries_the_loss_but_no_norm(norm, make):
    """Trap 7.10: |relu| has derivative 0 at a dropped entry, so the elu branch adds nothing to the penalty."""
    plain, rectified = (gate_gradients(make, rgf, norm) for rgf in (None, 0.1))
    torch.testing.assert_close(plain, rectified, rtol=0, atol=0)
    assert plain.abs().sum() > 0
    loss_plain, loss_rectified = (gate_gradients(make, rgf, torch.sum) for rgf in (None, 0.1))
    assert not torch.allclose(loss_plain, loss_rectified)


def test_l1_pushes_survivors_down_and_dropped_entries_up():
    gate = SignedGate.from_values(torch.tensor([0.9, 0.0, -0.4, 0.0], dtype=torch.float64))
    L1()(gate()).backward()
    s, survivors = torch.sigmoid(gate.beta).item(), 2
    for alpha, grad, alive in zip(gate.alpha.tolist(), gate.alpha.grad.tolist(), [1, 0, 1, 0], strict=True):
        assert grad == pytest.approx(math.copysign(1, alpha) * (alive - s * survivors))
    norm = sum(abs(x) for x in gate.alpha.tolist())
    assert gate.beta.grad.item() == pytest.approx(-s * (1 - s) * norm * survivors)


def slow_group_prox(row, step, groups):
    out = list(row)
    for group in groups:
        length = math.sqrt(sum(row[i] ** 2 for i in group))
        for i in group:
            out[i] = max(1 - step / length, 0) * row[i] if length else 0.0
    return out


def slow_shrink(row, threshold):
    return [math.copysign(max(abs(x) - threshold, 0), x) for x in row]


PROXIMAL = {
    "l1": (L1(), lambda row, step: slow_shrink(row, step)),
    "l12": (ExclusiveL12(), lambda row, step: slow_shrink(row, step * slow_l1(row))),
    "l21-size3-partial": (GroupL21(size=3), lambda row, step: slow_group_prox(row, step, by_size(3, 7))),
    "l21-explicit": (GroupL21(groups=EXPLICIT), lambda row, step: slow_group_prox(row, step, EXPLICIT)),
}


@pytest.mark.parametrize(("norm", "slow"), PROXIMAL.values(), ids=PROXIMAL)
@pytest.mark.parametrize("step", [0.0, 0.15, 1.2])
def test_proximal_is_that_of_the_slow_loop(norm, slow, step):
    w = random_rows(2, 5, 7)
    w[0, 0] = 0
    before = w.clone()
    expected = torch.tensor([slow(row, step) for row in w.reshape(-1, 7).tolist()], dtype=w.dtype).reshape(w.shape)
    torch.testing.assert_close(norm.proximal(w, step), expected)
    assert torch.equal(w, before)


def test_proximal_leaves_entries_of_no_group_alone():
    w = random_rows(4, 7)
    shrunk = GroupL21(groups=EXPLICIT).proximal(w, 100.0)
    assert torch.equal(shrunk[:, 3], w[:, 3])
    assert (shrunk[:, [0, 1, 2, 4, 5, 6]] == 0).all()


def test_lp_has_no_proximal():
    with pytest.raises(SparsityError, match=r"Lp\(0\.5\) has no closed-form proximal"):
        Lp(0.5).proximal(torch.ones(3), 0.1)


@pytest.mark.parametrize("p", [0, -1.0, math.inf, math.nan, "a", True])
def test_lp_refuses_a_bad_exponent(p):
    with pytest.raises(SparsityError, match="p must be a finite number above 0, got"):
        Lp(p)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"size": 2, "groups": [[0]]},
        *({"size": size} for size in (0, 2.5, "12", True)),
        *({"groups": groups} for groups in ([], [[]], [[0, 1], [1]], [[-1]], [0, 1], [[0.5]], 3, "ab")),
    ],
    ids=str,
)
def test_group_norm_refuses_bad_groups(arguments):
    with pytest.raises(SparsityError, match=r"GroupL21|explicit groups"):
        GroupL21(**arguments)


def test_explicit_groups_beyond_the_row_are_named():
    for call in (GroupL21(groups=[[0, 7]]), lambda a: GroupL21(groups=[[0, 7]]).proximal(a, 0.1)):
        with pytest.raises(SparsityError, match=r"names entry 7.* 7 entries"):
            call(torch.ones(2, 7))


def test_group_norm_refuses_a_single_number():
    norm = GroupL21(2)
    for call in (norm, lambda a: norm.proximal(a, 0.1)):
        with pytest.raises(SparsityError, match=r"needs (values|weights) of shape \(\.\.\., n\), got a single number"):
            call(torch.tensor(1.0))


@pytest.mark.parametrize("p", [50.0, 1000.0])
def test_lp_of_a_large_exponent_does_not_underflow(p):
    row = torch.tensor([0.01, -0.02, 0.005, 0.0])
    assert Lp(p)(row).item() == pytest.approx(0.02, rel=1e-6)
    row.requires_grad_()
    Lp(p)(row).backward()
    assert row.grad.tolist() == pytest.approx([0.0, -1.0, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("p", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_lp_gradcheck_at_every_scale(p, scale):
    a = random_rows(3, 7)
    a = (a.sign() * (a.abs() + 0.2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: Lp(p)(a * scale) / scale, a)
    assert torch.autograd.gradgradcheck(lambda a: Lp(p)(a * scale) / scale, a)
