"""The checks of arguments behind every error message."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from diffsparse.errors import (
    SparsityError,
    require_floats,
    require_module,
    require_number,
    require_one_of,
    require_whole,
)


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), np.int64(1), Fraction(1, 2)], ids=repr)
def test_real_numbers_pass_as_floats(value):
    number = require_number("x", value, low=0, high=1)
    assert type(number) is float
    assert number == value


@pytest.mark.parametrize(
    "value", [True, np.True_, "1", None, 1j, math.nan, math.inf, Decimal(1), torch.ones(()), [1]], ids=repr
)
def test_everything_else_is_refused(value):
    with pytest.raises(SparsityError, match=r"^x must be a finite number, got"):
        require_number("x", value)
    with pytest.raises(SparsityError, match=r"^x must be a whole number, got"):
        require_whole("x", value)


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "words"),
    [
        ({"low": 0}, 0, -0.1, " of at least 0"),
        ({"above": 0}, 0.1, 0, " above 0"),
        ({"low": -1, "high": 2}, 2, 2.1, " of at least -1 and of at most 2"),
    ],
)
def test_bounds(bounds, good, bad, words):
    assert require_number("x", good, **bounds) == good
    with pytest.raises(SparsityError) as caught:
        require_number("x", bad, **bounds)
    assert str(caught.value) == f"x must be a finite number{words}, got {bad}"


def test_whole_numbers():
    assert type(require_whole("n", np.int64(3), low=1, high=3)) is int
    for value in (0, 4, 2.0, 2.5):
        with pytest.raises(SparsityError, match=f"^n must be .* of at least 1 and of at most 3, got {value}"):
            require_whole("n", value, low=1, high=3)


def test_tensors_and_modules():
    require_floats("x", torch.ones(2, dtype=torch.bfloat16))
    for value, given in ((torch.ones(2, dtype=torch.int32), "torch.int32"), ([1.0], "list"), (2.0, "float")):
        with pytest.raises(SparsityError, match=f"^x must be a floating-point tensor, got {given}"):
            require_floats("x", value)
    module = nn.Identity()
    assert require_module("model", module) is module
    for value in ("x", nn.Identity, None):
        with pytest.raises(SparsityError, match=r"^model must be a torch\.nn\.Module, got"):
            require_module("model", value)


@pytest.mark.parametrize(("value", "hint"), [("appel", "; did you mean 'apple'?"), ("kiwi", ""), (3, ""), (None, "")])
def test_the_closest_of_several_choices_is_suggested(value, hint):
    require_one_of("fruit", "apple", ["apple", "pear"])
    with pytest.raises(SparsityError) as caught:
        require_one_of("fruit", value, ["apple", "pear"])
    assert str(caught.value) == f"fruit must be one of apple, pear, got {value!r}{hint}"
