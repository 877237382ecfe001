"""Numbers that are not finite."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from tests.compaction.tiny import X, tiny

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["conv.weight", "norm.bias", "norm.running_mean", "norm.running_var", "head.bias"])
def test_the_tensor_is_named(name: str, odd: float) -> None:
    model = tiny(dead=[0])
    model.state_dict()[name].flatten()[0] = odd
    with pytest.raises(ds.SparsityError, match=f"'{name}' of Tiny holds {'NaN' if odd != odd else 'infinity'}"):
        ds.compact(model, X)


def test_a_gate_is_named_by_its_own_name() -> None:
    model: Any = ds.sparsify(tiny())
    model.norm.gate.alpha.data[1] = NAN
    with pytest.raises(ds.SparsityError, match=r"'norm\.gate\.alpha' of Tiny holds NaN"):
        ds.compact(model, X)


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_the_example_is_named(odd: float) -> None:
    x = X.clone()
    x[0, 0, 0, 0] = odd
    with pytest.raises(ds.SparsityError, match="tensor 0 of example_inputs"):
        ds.compact(tiny(), x)


class Attends(nn.Module):
    """Minus infinity hides what comes later, as in every decoder."""

    def __init__(self, hidden: float = -INF) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 8), nn.BatchNorm1d(5), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((5, 5), hidden).triu(1))

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        y = self.norm(self.a(x))
        scores = y @ y.transpose(1, 2) + self.mask
        return self.b((scores if more is None else scores + more).softmax(-1) @ y)


@pytest.mark.parametrize("given", [False, True])
def test_minus_infinity_in_a_mask_is_fine(given: bool) -> None:
    model, x = Attends().double().eval(), torch.randn(2, 5, 4, dtype=torch.float64)
    inputs = (x, torch.full((5, 5), -INF, dtype=torch.float64).triu(2)) if given else (x,)
    small = ds.compact(model, inputs)
    assert torch.allclose(small.model(*inputs), model(*inputs), rtol=0, atol=1e-9)


def test_infinity_in_a_mask_is_not() -> None:
    with pytest.raises(ds.SparsityError, match="'mask' of Attends holds infinity"):
        ds.compact(Attends(INF).double().eval(), torch.randn(2, 5, 4, dtype=torch.float64))


@pytest.mark.parametrize("end", [lambda y: y * NAN, lambda y: (y - y) / 0.0])
def test_an_output_of_nothing_but_nan_is_refused(end: Callable[[Tensor], Tensor]) -> None:
    class Ends(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return end(super().forward(x))

    with pytest.raises(ds.SparsityError, match="output 0 of the model is NaN everywhere"):
        ds.compact(Ends(nn.Conv2d(3, 4, 1)).double().eval(), X)


def test_numbers_that_overflow_only_when_added_are_fine() -> None:
    model = nn.Sequential(nn.Linear(3, 4)).half().eval()
    model[0].weight.data.fill_(6e4)
    model[0].bias.data.fill_(6e4)
    assert ds.compact(model, torch.zeros(2, 3).half()).max_difference == 0
