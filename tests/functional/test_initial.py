"""The paper's start of a gate."""

import math

import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.functional import initial_alpha_beta, signed_threshold
from diffsparse.functional.initial import initial_beta


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
