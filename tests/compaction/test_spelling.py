"""What the names of torch functions say."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.compaction.rules import canonical
from diffsparse.compaction.spelling import is_in_place, spelling


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.relu, "relu"),
        (F.relu, "relu"),
        (Tensor.relu_, "relu"),
        (Tensor.__radd__, "add"),
        (Tensor.__iadd__, "add"),
        (Tensor.__truediv__, "div"),
        (torch.concat, "cat"),
        (Tensor.T.__get__, "transpose_all"),
        (Tensor.__getitem__, "getitem"),
    ],
)
def test_one_name_for_every_spelling(function: Any, name: str) -> None:
    assert canonical(function) == name


@pytest.mark.parametrize(
    ("function", "writes", "tells"),
    [
        (torch.relu, False, False),
        (Tensor.relu_, True, False),
        (Tensor.__iadd__, True, False),
        (Tensor.__setitem__, True, False),
        (Tensor.__invert__, False, False),
        (Tensor.__add__, False, False),
        (Tensor.size, False, True),
        (Tensor.shape.__get__, False, True),
        (Tensor.item, False, False),
    ],
)
def test_whether_a_call_writes_or_only_tells(function: Any, writes: bool, tells: bool) -> None:
    assert spelling(function)[1:] == (writes, tells)


@pytest.mark.parametrize(
    ("op", "spelled", "kwargs", "expected"),
    [
        ("relu", False, {}, False),
        ("relu", True, {}, True),
        ("relu", False, {"inplace": True}, True),
        ("relu", False, {"inplace": False}, False),
        ("add", False, {"out": torch.zeros(1)}, True),
        ("dropout", False, {"inplace": True, "training": False}, False),
        ("dropout", False, {"inplace": True, "training": True}, True),
    ],
)
def test_arguments_may_ask_for_writing(op: str, spelled: bool, kwargs: dict[str, Any], expected: bool) -> None:
    assert is_in_place(op, spelled, kwargs) is expected
