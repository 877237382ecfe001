"""Shapes of competition groups, their precision, and the initial values of a gate."""

import math

import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.functional import initial_alpha_beta, signed_threshold
from diffsparse.functional.groups import align_beta, full_precision, group_dims, in_float32, initial_beta


@pytest.mark.parametrize(
    ("dim", "expected"),
    [(0, (0,)), (-1, (2,)), (1, (1,)), ((2, 0), (0, 2)), ((-1, -3), (0, 2)), ((0, 1, 2), (0, 1, 2))],
)
def test_dims_are_sorted_and_not_negative(dim, expected):
    assert group_dims(torch.ones(2, 3, 4), dim) == expected


@pytest.mark.parametrize(
    ("alpha", "dim", "message"),
    [
        (torch.ones(3, dtype=torch.bool), 0, "x must be a floating-point tensor, got torch.bool"),
        (torch.tensor(1.0), -1, r"x needs at least one dimension.*shape \(\).*dim=-1"),
        (torch.ones(3), (), r"x needs at least one dimension.*dim=\(\)"),
        (torch.ones(2, 3), 2, r"dim=2 is out of range for x of shape \(2, 3\)"),
        (torch.ones(2, 3), (0, -3), r"dim=-3 is out of range for x of shape \(2, 3\)"),
        (torch.ones(2, 3), (0, -2), r"dim=\(0, -2\) names a dimension of x twice"),
        (torch.ones(2, 0), 1, r"at least one entry, got x of shape \(2, 0\)"),
    ],
)
def test_wrong_dims(alpha, dim, message):
    with pytest.raises(SparsityError, match=message):
        group_dims(alpha, dim, "x")


def test_a_batch_may_be_empty():
    assert group_dims(torch.ones(0, 3), -1) == (1,)


@pytest.mark.parametrize(
    ("dims", "shape", "aligned"),
    [((1,), (2, 4), (2, 1, 4)), ((0, 2), (3,), (1, 3, 1)), ((0, 1, 2), (), ()), ((0,), (3, 4), (1, 3, 4))],
)
def test_beta_is_aligned_with_its_group(dims, shape, aligned):
    alpha, beta = torch.ones(2, 3, 4), torch.rand(shape)
    result = align_beta(beta, alpha, dims)
    assert tuple(result.shape) == aligned
    assert torch.equal(result.flatten(), beta.flatten())
    assert align_beta(torch.tensor(1.0), alpha, dims).dim() == 0


@pytest.mark.parametrize("shape", [(3,), (1,), (4, 2), (2, 1, 4), (2, 3, 4)])
def test_wrong_beta(shape):
    with pytest.raises(SparsityError) as caught:
        align_beta(torch.zeros(shape), torch.ones(2, 3, 4), (1,), "beta_row")
    assert str(caught.value) == (
        "beta_row must be a scalar or have one entry per group, shape (2, 4), "
        f"for alpha of shape (2, 3, 4); got shape {shape}"
    )


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_lifted(dtype, expected):
    assert in_float32(torch.ones(2, dtype=dtype)).dtype == expected


def test_products_stay_in_float32_on_a_device_with_autocast():
    matrix = torch.rand(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (matrix @ matrix).dtype == torch.bfloat16
        with full_precision(matrix.device):
            assert (matrix @ matrix).dtype == torch.float32
        assert (matrix @ matrix).dtype == torch.bfloat16


def test_devices_without_autocast_need_nothing():
    with full_precision(torch.device("meta")):
        assert torch.ones(2, device="meta").dtype == torch.float32


def test_every_entry_is_one_half_in_float32_for_every_size():
    worst = max((signed_threshold(*initial_alpha_beta(n)) - 0.5).abs().max().item() for n in range(1, 2049))
    assert worst < 1e-6


@pytest.mark.parametrize("n", [1, 2, 3, 64, 2048])
def test_fraction_is_one_over_n_squared_plus_n(n):
    alpha, beta = initial_alpha_beta(n, dtype=torch.float64)
    assert 1 / (1 + math.exp(-initial_beta(n))) == pytest.approx(1 / (n * n + n), rel=1e-12)
    assert beta.shape == ()
    assert beta.item() == initial_beta(n)
    assert alpha.tolist() == [0.5 * (n + 1) / n] * n


def test_group_of_one_starts_at_alpha_one_and_beta_zero():
    alpha, beta = initial_alpha_beta(1)
    assert alpha.tolist() == [1.0]
    assert beta.item() == 0.0


@pytest.mark.parametrize("value", [-2.0, 0.0, 1.0, 1e-3])
def test_other_start_values(value):
    alpha, beta = initial_alpha_beta(7, value, dtype=torch.float64)
    torch.testing.assert_close(signed_threshold(alpha, beta), torch.full((7,), value, dtype=torch.float64))


def test_dtype_and_device():
    assert all(x.dtype == torch.float32 for x in initial_alpha_beta(3))
    assert all(x.dtype == torch.float64 for x in initial_alpha_beta(3, dtype=torch.float64))
    assert all(x.device.type == "meta" for x in initial_alpha_beta(3, device="meta"))


def test_half_precision_parameters_lose_the_start():
    alpha, beta = initial_alpha_beta(256, dtype=torch.bfloat16)
    assert signed_threshold(alpha, beta)[0].item() == pytest.approx(0.498, abs=1e-3)


@pytest.mark.parametrize("n", [0, -3])
def test_wrong_size(n):
    with pytest.raises(SparsityError, match=f"n, the number of entries.*at least 1, got {n}"):
        initial_alpha_beta(n)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_wrong_value(value):
    with pytest.raises(SparsityError, match=f"got {value}"):
        initial_alpha_beta(3, value)
