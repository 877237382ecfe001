"""Tensors put together from others: what each channel of the result is made of."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.testing import check_rule
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import chosen, node_of, recorded, tiny


def written(y: Tensor) -> Tensor:
    wider = y.new_zeros(y.shape[0], y.shape[1] + 4, *y.shape[2:])
    wider[:, 2:-2] = y
    return wider


def swapped(y: Tensor) -> Tensor:
    half = y.shape[1] // 2
    result = torch.zeros_like(y)
    result[:, :half] = y[:, half:]
    result[:, half:] = y[:, :half]
    return result


def framed(y: Tensor) -> Tensor:
    frame = torch.zeros(y.shape[0], y.shape[1], y.shape[2] + 2, y.shape[3] + 2, dtype=y.dtype)
    frame[:, :, 1:-1, 1:-1] = y
    return frame


def switched_off(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, 1] = 0
    return y


def shifted(y: Tensor) -> Tensor:
    """As temporal shift modules do it, over rows."""
    fold, result = y.shape[1] // 4, torch.zeros_like(y)
    result[:, :fold, 1:] = y[:, :fold, :-1]
    result[:, fold : 2 * fold, :-1] = y[:, fold : 2 * fold, 1:]
    result[:, 2 * fold :] = y[:, 2 * fold :]
    return result


OPERATORS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "cat of rows": (lambda y: torch.cat([y, 2 * y.flip(2)], 2), 8),
    "cat of images": (lambda y: torch.cat([y, y])[: y.shape[0]], 8),
    "cat within heads": (lambda y: torch.cat([y.unflatten(1, (2, -1)), y.unflatten(1, (2, -1))], 2).flatten(1, 2), 16),
    "hstack": (lambda y: torch.hstack([y, 2 * y]), 16),
    "vstack": (lambda y: torch.vstack([y, y])[: y.shape[0]], 8),
    "dstack": (lambda y: torch.dstack([y, y]), 8),
    "stack and sum": (lambda y: torch.stack([y, y.flip(1)]).sum(0), 8),
    "stack and interleave": (lambda y: torch.stack([y, 3 * y], 2).flatten(1, 2), 16),
    "pad": (lambda y: F.pad(y, (0, 0, 0, 0, 2, 1)), 11),
    "pad everywhere": (lambda y: F.pad(y, (1, 1, 0, 1, 2, 1)), 11),
    "written": (written, 12),
    "swapped": (swapped, 8),
    "framed": (framed, 8),
    "switched off": (switched_off, 8),
    "shifted": (shifted, 8),
    "repeat": (lambda y: y.repeat(1, 2, 1, 1), 16),
    "tile": (lambda y: torch.tile(y, (2, 1)), 8),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_rule_holds(name: str) -> None:
    check_rule(OPERATORS[name][0], widths=(4, 8), trials=10)


@pytest.mark.parametrize("name", OPERATORS)
def test_nothing_dead_is_left(name: str) -> None:
    between, width = OPERATORS[name]
    shrinks(tiny(between, dead=[0, 1, 2, 3, 5], head=width))


@pytest.mark.parametrize("name", ["cat of rows", "cat of images", "vstack", "dstack", "tile"])
def test_along_other_dimensions_widths_follow(name: str) -> None:
    small = shrinks(tiny(OPERATORS[name][0], dead=[0, 1]))
    assert small.model.head.in_channels == 6
    assert small.model.norm(torch.zeros(1, 6, 2, 2).double()).shape[1] == 6
    assert not small.kept


def test_a_channel_made_of_two_constants_varies() -> None:
    model = tiny(lambda y: torch.cat([y, y.flip(1)], 2), dead=[0, 7], fixed=[2, 5])
    assert chosen(node_of(recorded(model), "cat").output.fixed) == [0, 7]
    model.norm.bias.data[[2, 5]] = 0.5
    assert chosen(node_of(recorded(model), "cat").output.fixed) == [0, 2, 5, 7]
    shrinks(model)


def test_what_is_written_over_is_not_read() -> None:
    def between(y: Tensor) -> Tensor:
        y = y.clone()
        y[:, :4] = y[:, 4:].clone()
        return y

    small = shrinks(tiny(between))
    assert small.model.conv.out_channels == 4


def test_a_number_that_is_written_is_kept_as_it_is() -> None:
    def between(y: Tensor) -> Tensor:
        y = y.clone()
        y[:, 1] = 2.5
        return y

    model = tiny(between, dead=[0, 1])
    assert node_of(recorded(model), "setitem").output.axes is None
    shrinks(model, most=1.5)
