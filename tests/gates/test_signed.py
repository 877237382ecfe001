"""The signed gate: its start, and a start at any given values."""

import math

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diffsparse.errors import SparsityError
from diffsparse.gates import SignedGate

reproducible = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
magnitudes = st.floats(-25, 3).map(lambda e: 10.0**e)
values = st.lists(st.one_of(st.just(0.0), magnitudes, magnitudes.map(lambda x: -x)), min_size=1, max_size=20)


def formula(alpha, beta):
    norm = sum(abs(x) for x in alpha)
    return [math.copysign(max(abs(x) - norm / (1 + math.exp(-beta)), 0.0), x) for x in alpha]


def assert_same_start(gate, wanted, tolerance):
    got = gate().detach()
    assert torch.equal(got.sign(), wanted.sign())
    assert (got - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("n", [1, 2, 3, 64, 2048])
def test_starts_at_one_half(n):
    gate = SignedGate(n)
    assert (gate() - 0.5).abs().max() < 1e-6
    assert gate.alpha.dtype == torch.float32
    assert gate.beta.item() == pytest.approx(-math.log(n * n + n - 1))


def test_start_is_as_exact_as_the_dtype():
    gate = SignedGate(3, value=-0.3, dtype=torch.float64)
    torch.testing.assert_close(gate(), torch.full((3,), -0.3, dtype=torch.float64), rtol=1e-14, atol=0)


def test_half_precision_is_not_used_for_parameters():
    gate = SignedGate(256, dtype=torch.bfloat16)
    assert {p.dtype for p in gate.parameters()} == {torch.float32}
    assert gate()[0].item() == pytest.approx(0.5, abs=1e-6)


def test_value_is_the_formula_of_each_group():
    torch.manual_seed(0)
    gate = SignedGate((3, 4), dim=0, dtype=torch.float64)
    gate.alpha.detach().normal_()
    gate.beta.detach().fill_(-1.5)
    for j in range(4):
        assert gate()[:, j].tolist() == pytest.approx(formula(gate.alpha[:, j].tolist(), -1.5))


@pytest.mark.parametrize("rgf", [None, 0.1])
def test_rectified_flow_brings_back_a_dead_gate(rgf):
    gate = SignedGate.from_values([0.0, 0.0, 0.0], rgf=rgf)
    optimizer = torch.optim.SGD(gate.parameters(), lr=1.0)
    for _ in range(50):
        optimizer.zero_grad()
        (-gate().sum()).backward()
        optimizer.step()
    assert bool(gate().any()) is (rgf is not None)


@reproducible
@given(values)
@example([0.0])
@example([0.0, 0.0])
@example([0.0] * 7)
@example([-3.0])
@example([1e-30, 1.0])
@example([1.0, -1e-30, 0.0, 1e3])
def test_from_values_round_trip(numbers):
    wanted = torch.tensor(numbers)
    assert_same_start(SignedGate.from_values(wanted), wanted, 1e-6)


@pytest.mark.parametrize("n", [2, 17, 256, 2048, 8192])
def test_from_values_keeps_tiny_values_in_large_groups(n):
    torch.manual_seed(n)
    wanted = torch.randn(n) * 10 ** torch.empty(n).uniform_(-20, 1)
    wanted[torch.rand(n) < 0.3] = 0
    wanted[0] = 1.0
    assert_same_start(SignedGate.from_values(wanted), wanted, 1e-6)


def test_from_values_of_batched_groups():
    wanted = torch.tensor([[[0.5, 0.0], [0.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    for dim in (0, 1, 2, -1, (0, 2), (1, 2), (0, 1, 2)):
        gate = SignedGate.from_values(wanted, dim=dim, rgf=0.1)
        assert gate.rgf == 0.1
        torch.testing.assert_close(gate().detach(), wanted, rtol=1e-12, atol=1e-12)


def test_from_values_keeps_the_paper_beta_and_half_way_dropped_entries():
    gate = SignedGate.from_values(torch.tensor([0.7, 0.0, -0.2], dtype=torch.float64))
    assert gate.beta.item() == pytest.approx(-math.log(11))
    threshold = gate.alpha.abs().sum().item() / 12
    assert gate.alpha.tolist() == pytest.approx([0.7 + threshold, threshold / 2, -0.2 - threshold])


def test_all_zero_group_starts_dropped_with_equal_entries():
    for n in (2, 3, 64):
        gate = SignedGate.from_values(torch.zeros(n))
        gate().sum().backward()
        assert not gate().any()
        assert not gate.alpha.grad.any()
        assert gate.alpha.unique().numel() == 1
        assert gate.alpha[0] > 0
        assert math.isfinite(gate.beta.item())


def test_from_values_takes_sequences_parameters_and_integers():
    assert SignedGate.from_values([1, 0, -2])().tolist() == pytest.approx([1, 0, -2], abs=1e-6)
    source = torch.nn.Parameter(torch.tensor([0.5, -0.5], dtype=torch.float16))
    gate = SignedGate.from_values(source)
    assert gate.alpha.dtype == torch.float32
    assert gate.alpha.is_leaf
    torch.testing.assert_close(gate().detach(), source.detach().float())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_from_values_refuses_values_that_are_not_finite(bad):
    with pytest.raises(SparsityError, match=f"finite numbers, got {bad}"):
        SignedGate.from_values([0.5, bad])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SignedGate(0), "size=0"),
        (lambda: SignedGate(2.5), "every dimension of size=2.5 must be a whole number of at least 1, got 2.5"),
        (lambda: SignedGate("12"), "every dimension of size=12 must be a whole number"),
        (lambda: SignedGate((2, True)), "whole number of at least 1, got True"),
        (lambda: SignedGate(3, value=math.nan), "got nan"),
        (lambda: SignedGate(3, value="0.5"), "starts at must be a finite number, got '0.5'"),
        (lambda: SignedGate(3, value=0), "neither zero, where it gets no gradient.*got 0"),
        (lambda: SignedGate(3, value=1e-60), "neither zero, .*torch.float32.*got 1e-60"),
        (lambda: SignedGate(3, value=2e38), "out of the range of torch.float32.*got 2e[+]38"),
        (lambda: SignedGate.from_values([3.4e38, 3.4e38]), "too large for torch.float32.*sum to"),
        (lambda: SignedGate.from_values([1.5e38] * 3), "too large for torch.float32.*sum to"),
        (lambda: SignedGate(3, rgf=-0.1), "rgf must.*got -0.1"),
        (lambda: SignedGate.from_values([]), r"size=torch.Size\(\[0\]\)"),
        (lambda: SignedGate.from_values(torch.tensor(1.0)), r"size=torch.Size\(\[\]\)"),
        (lambda: SignedGate.from_values([1.0], dim=1), "dim=1 is out of range"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(SparsityError, match=message):
        build()


def test_starts_that_another_dtype_can_hold_are_taken():
    assert SignedGate(3, value=1e-60, dtype=torch.float64)()[0].item() == pytest.approx(1e-60)
    assert SignedGate.from_values(torch.full((2,), 3.4e38, dtype=torch.float64))()[0].item() == pytest.approx(3.4e38)


def test_a_group_of_one_at_zero_is_dead_for_good():
    gate = SignedGate.from_values([0.0], rgf=0.1)
    gate().sum().backward()
    assert gate.alpha.grad.tolist() == [0.0]


def test_reset_goes_back_to_the_value():
    gate = SignedGate((2, 3), value=-0.25)
    start = {key: value.clone() for key, value in gate.state_dict().items()}
    for parameter in gate.parameters():
        parameter.detach().add_(1)
    gate.reset_parameters()
    assert all(torch.equal(value, start[key]) for key, value in gate.state_dict().items())


def test_materialised_from_the_meta_device():
    with torch.device("meta"):
        gate = SignedGate(4)
    gate.to_empty(device="cpu").reset_parameters()
    assert gate().tolist() == pytest.approx([0.5] * 4)


@pytest.mark.parametrize("keeps_sizes", [False, True])
def test_a_raised_threshold_takes_the_smallest_entries(keeps_sizes):
    gate = SignedGate.from_values([[1.0, -0.5, 0.2, 0.05], [0.3, 2.0, -1.0, 0.7]], threshold=0.1)
    gate.keeps_sizes = keeps_sizes
    before = gate().detach()
    gate.shift_threshold(torch.tensor([2.2, 1.6]))
    after = gate().detach()
    assert (after != 0).tolist() == [[True, True, False, False], [False, True, True, True]]
    lives = after != 0
    assert torch.allclose(after[lives], before[lives]) == keeps_sizes
    assert torch.equal(after[0].abs().argsort(descending=True)[:2], torch.tensor([0, 1]))


def test_entries_of_any_size_can_live_or_die_and_other_values_stay():
    gate = SignedGate.from_values([[1.0, -0.5, 0.2], [0.3, 2.0, -1.0]], threshold=0.1)
    gate.let_live(torch.tensor([[False, True, True], [True, True, True]]))
    assert torch.allclose(gate(), torch.tensor([[0.0, -0.5, 0.2], [0.3, 2.0, -1.0]]))
    gate.let_live(torch.tensor([[True, True, False], [True, False, False]]))
    values = gate().detach()
    assert torch.allclose(values[:, 1:], torch.tensor([[-0.5, 0.0], [0.0, 0.0]]))
    assert values[1, 0].item() == pytest.approx(0.3)
    assert 0 < values[0, 0] < 1e-3


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 3.0], [0.0, 0.0]])
def test_a_whole_group_can_be_closed(values):
    gate = SignedGate.from_values(values, threshold=0.1)
    gate.let_live(torch.zeros(1, len(values), dtype=torch.bool))
    assert not gate().any()
    assert gate.alpha.isfinite().all()
    assert gate.beta.isfinite()


def test_values_stay_over_many_shifts_and_entries_come_back():
    gate = SignedGate.from_values([1.0, 0.5, 0.2, 0.1], threshold=0.1)
    gate.keeps_sizes = True
    living = []
    for by in (1.2, 0.5, 0.3, -0.6, -0.9):
        gate.shift_threshold(torch.tensor(by))
        values = gate().detach()
        assert torch.allclose(values[:3], torch.tensor([1.0, 0.5, 0.2]))
        living.append(int((values != 0).sum()))
    assert living == [3, 3, 3, 3, 4]


def test_a_group_of_zeros_takes_a_shift():
    gate = SignedGate(3)
    gate.keeps_sizes = True
    gate.alpha.data.zero_()
    gate.shift_threshold(torch.tensor(0.5))
    assert gate.beta.isfinite()
    assert torch.equal(gate(), torch.zeros(3))


@pytest.mark.parametrize(("size", "dim"), [(6, -1), ((3, 5), -1), ((3, 5), 0), ((2, 3, 4), (0, 2))])
def test_effects_are_values_times_the_derivative_by_them(size, dim):
    torch.manual_seed(0)
    gate = SignedGate(size, dim=dim, dtype=torch.float64)
    gate.alpha.data.uniform_(-1, 1)
    gate.beta.data.fill_(-2.0)
    assert gate.effects() is None
    weights = torch.randn_like(gate.alpha)
    values = gate()
    values.retain_grad()
    (weights * values.sin()).sum().backward()
    assert (values == 0).any()
    expected = gate.groups(values.detach() * values.grad)[0]
    assert torch.allclose(gate.effects(), expected, atol=1e-12)


def test_room_is_the_mean_over_live_entries():
    gate = SignedGate((3, 4), dtype=torch.float64)
    gate.alpha.data.copy_(torch.tensor([[1.0, -2.0, 3.0, 0.1], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]))
    gate.beta.data.copy_(torch.tensor([-2.0, -2.0, 3.0]))
    values, margins = gate.room()
    threshold = torch.sigmoid(torch.tensor(-2.0, dtype=torch.float64))
    expected = torch.tensor([6.0 - 3 * 6.1 * threshold, 4 - 4 * 4 * threshold]) / torch.tensor([3, 4])
    assert torch.allclose(values[:2], expected.double())
    shares = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) / 6.1
    assert margins[0].item() == pytest.approx((torch.logit(shares) + 2).mean().item())
    # nothing lives in the last group
    assert values[2] == margins[2] == torch.inf
