"""Code between layers as users write it: views written to, data read, objects returned, calls with more arguments."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import diffsparse as ds
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise

X = torch.randn(2, 3, 6, 6, dtype=torch.float64)


class Between(nn.Module):
    """conv, batch norm with dead channels, the code under test, conv."""

    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.code = code

    def forward(self, x: Tensor) -> Any:
        return self.b(self.code(self.norm(self.a(x))))


def between(code: Callable[[Tensor], Tensor], constant: bool = False) -> Between:
    model = randomise(Between(code))
    zero_channels(model.norm, [0, 2, 5])
    if constant:
        model.norm.weight.data[3] = 0
    return model  # type: ignore[return-value]


def exact(model: nn.Module, small: nn.Module, *inputs: Tensor) -> bool:
    with torch.no_grad():
        return all(torch.allclose(model(x), small(x), rtol=0, atol=1e-9) for x in inputs)


def write_to_part(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, :3].add_(1.0)
    return y


def write_through_a_view(y: Tensor) -> Tensor:
    flat = y.flatten(2)
    flat.mul_(2.0)
    return y


CODES: dict[str, Callable[[Tensor], Tensor]] = {
    "write to part": write_to_part,
    "write through a view": write_through_a_view,
    "as an array": lambda y: y * float(np.asarray(y.detach()).sum() != 1e9),
    "vmap": lambda y: torch.vmap(torch.relu)(y),
    "alpha from the shape": lambda y: torch.add(y, y, alpha=y.shape[-1]),
    "clamp from the shape": lambda y: torch.clamp(y, min=y.shape[-1] / 4),
    "mean, keepdims": lambda y: y - y.mean((2, 3), keepdims=True),
    "concatenate along an axis": lambda y: torch.concatenate([y[:, :4], y[:, 4:]], axis=1),
    "out": lambda y: torch.mul(y, y, out=torch.zeros_like(y)),
    "iterate": lambda y: torch.stack(list(y)),
}


@pytest.mark.filterwarnings("ignore:the forward pass:diffsparse.SparsityWarning")
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", CODES)
def test_code_between_layers_stays_exact_at_every_size(name: str, constant: bool) -> None:
    model = between(CODES[name], constant)
    small = ds.compact(model, X)
    assert exact(model, small.model, X, torch.randn(3, 3, 9, 9, dtype=torch.float64))
    assert small.model.a.out_channels < 8


@pytest.mark.parametrize("wrap", [lambda y: SimpleNamespace(logits=y), lambda y: {1: {"a": frozenset([y])}}])
def test_tensors_inside_any_object_are_found(wrap: Callable[[Tensor], Any]) -> None:
    class Wrapped(Between):
        def forward(self, x: Tensor) -> Any:
            return wrap(super().forward(x))

    model = randomise(Wrapped(torch.relu))
    zero_channels(model.norm, [0, 1])
    small = ds.compact(model, X)
    assert small.model.b.out_channels == 4
    assert small.model.a.out_channels == 6


def test_an_output_without_tensors_is_refused() -> None:
    class Silent(Between):
        def forward(self, x: Tensor) -> Any:
            return str(super().forward(x))

    with pytest.raises(ds.SparsityError, match="returned a str in which no tensor was found"):
        ds.compact(randomise(Silent(torch.relu)), X)


def test_a_branch_on_data_is_warned_of() -> None:
    model = between(lambda y: y if y.sum() > -1e9 else -y)
    with pytest.warns(ds.SparsityWarning, match="reads the data of a tensor"):
        ds.compact(model, X)


class Conditioned(nn.Module):
    """Blocks called with a second argument, as in diffusion nets."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1, bias=False)

        def forward(self, x: Tensor, time: Tensor) -> Tensor:
            return x + self.conv(self.norm(x)) * time

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 4, 1), nn.ModuleList(self.Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(x, x.mean()) * (i + 1.0)
        return x


def test_a_dead_block_with_a_second_argument() -> None:
    model = randomise(Conditioned())
    zero_channels(model.blocks[1].norm)
    small = ds.compact(model, X)
    assert exact(model, small.model, X)
    assert not list(small.model.blocks[1].parameters())


def test_a_sequential_with_a_forward_of_its_own_keeps_its_places() -> None:
    class Counted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for i, block in enumerate(self):
                x = block(x, x.mean()) * (i + 1.0)
            return x

    model = randomise(nn.Sequential(nn.Conv2d(3, 4, 1), Counted(*(Conditioned.Block() for _ in range(3)))))
    zero_channels(model[1][1].norm)
    small = ds.compact(model, X)
    assert exact(model, small.model, X)
    assert len(small.model[1]) == 3


@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
def test_outputs_that_are_not_finite(odd: float) -> None:
    model = between(lambda y: torch.where(y > 1e9, y, y))
    full = nn.Sequential(model, nn.ConstantPad2d(1, odd))
    assert ds.compact(full, X).max_difference < 1e-9


def test_a_model_that_checks_its_input() -> None:
    class Checked(Between):
        def forward(self, x: Tensor) -> Any:
            if x.min() < 0:
                raise ValueError("expects non-negative images")
            return super().forward(x)

    model = randomise(Checked(torch.relu))
    zero_channels(model.norm, [0])
    with pytest.warns(ds.SparsityWarning, match="reads the data of a tensor"):
        assert ds.compact(model, X.abs()).model.a.out_channels == 7


def test_a_pruned_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    prune.ln_structured(model[0], "weight", amount=0.5, n=1, dim=0)
    model(torch.randn(1, 3, 4, 4))
    assert ds.compact(model, torch.randn(1, 3, 4, 4)).max_difference < 1e-5


def test_a_bias_that_folding_adds_to_a_frozen_layer_is_frozen() -> None:
    model = randomise(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1, bias=False)))
    model[1].weight.data[2] = 0
    model[2].requires_grad_(False)
    small = ds.compact(model, X)
    assert small.plan.layers["2"].adds_bias
    assert not small.model[2].bias.requires_grad


def test_numbers_that_depend_on_the_batch_are_not_constants() -> None:
    model = between(lambda y: y.clamp(min=1 / y.shape[0]), constant=True)
    small = ds.compact(model, X)
    assert exact(model, small.model, torch.randn(16, 3, 6, 6, dtype=torch.float64))


def test_a_module_that_only_training_runs_is_warned_of() -> None:
    class WithHead(Between):
        def __init__(self) -> None:
            super().__init__(torch.relu)
            self.extra = nn.Conv2d(8, 2, 1)

    with pytest.warns(ds.SparsityWarning, match="not run in eval mode.*: extra"):
        ds.compact(randomise(WithHead()), X)


def test_random_numbers_of_the_model_itself() -> None:
    model = between(lambda y: y + torch.randn_like(y[:, :1]))
    assert ds.compact(model, X).max_difference < 1e-9


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="aot_eager")])
def test_wrappers_are_taken_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = between(torch.relu)
    small = ds.compact(wrap(model), X)
    assert type(small.model) is Between
    assert exact(model, small.model, X)


def test_a_lazy_model_is_told_what_to_do() -> None:
    with pytest.raises(ds.SparsityError, match="run the model once"):
        ds.compact(nn.Sequential(nn.LazyConv2d(4, 1)), X)


def test_layers_behind_a_view_that_splits_channels_still_shrink() -> None:
    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.up = nn.Linear(5, 8 * 9), nn.ConvTranspose2d(8, 6, 2, stride=2)
            self.norm, self.out = nn.BatchNorm2d(6), nn.Conv2d(6, 3, 3, padding=1)

        def forward(self, z: Tensor) -> Tensor:
            return self.out(torch.relu(self.norm(self.up(self.start(z).view(-1, 8, 3, 3)))))

    model = randomise(Generator())
    zero_channels(model.norm, [0, 1, 2])
    small = ds.compact(model, torch.randn(2, 5, dtype=torch.float64))
    assert (small.model.up.out_channels, small.model.out.in_channels) == (3, 3)
    assert exact(model, small.model, torch.randn(7, 5, dtype=torch.float64))


def test_squeeze_and_excitation_with_expand_as_and_prelu() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.PReLU(8)
            self.down, self.up, self.b = nn.Linear(8, 2), nn.Linear(2, 8), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.norm(self.a(x)))
            y = torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3)))))).view(x.shape[0], x.shape[1], 1, 1)
            return self.b(x * y.expand_as(x))

    model = randomise(Squeezed())
    zero_channels(model.norm, [0, 1, 2])
    small = ds.compact(model, X).model
    assert (small.a.out_channels, small.act.num_parameters, small.down.in_features) == (5, 5, 5)
    assert (small.up.out_features, small.b.in_channels) == (5, 5)
    assert exact(model, small, torch.randn(3, 3, 9, 9, dtype=torch.float64))


def test_an_index_stored_in_the_model() -> None:
    class Picks(Between):
        def __init__(self) -> None:
            super().__init__(torch.relu)
            self.register_buffer("index", torch.tensor([7, 6, 5, 4, 3, 2, 1, 0]))

        def forward(self, x: Tensor) -> Any:
            return self.b(self.norm(self.a(x))[:, self.index])

    model = randomise(Picks())
    zero_channels(model.norm, [0, 1])
    small = ds.compact(model, X).model
    assert (small.a.out_channels, small.b.in_channels) == (6, 6)
    assert exact(model, small, X)


def test_numbers_computed_from_a_width_are_noticed_behind_a_norm() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
            self.last = nn.BatchNorm2d(4, track_running_stats=False, eps=1e-12)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.norm(self.conv(x)))
            out: Tensor = self.last(self.head(y / y.shape[1] ** 0.5))
            return out

    model = Scaled().double().eval()
    model.head.bias.data.zero_()
    model.norm.weight.data[:5] = 0
    model.norm.bias.data[:5] = 0
    small = ds.compact(model, torch.randn(2, 3, 6, 6).double())
    assert small.model.conv.out_channels == 3
    assert "computes with the widths of its tensors: div is given 1.73205" in small.fallbacks[0]
    assert small.model.norm(small.model.conv(torch.randn(1, 3, 2, 2).double())).shape[1] == 8
