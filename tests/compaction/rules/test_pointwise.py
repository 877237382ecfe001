"""Activations, sums and products: what stays fixed, what is read."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.rules import OPAQUE
from diffsparse.compaction.rules.pointwise import OPERATORS
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise, same
from tests.compaction.tiny import OTHER, X, analysed, chosen, complement, node_of, recorded, tiny

ACTIVATIONS: list[Callable[..., Tensor]] = [
    *(F.relu, F.relu6, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.hardtanh),
    *(F.leaky_relu, F.softplus, F.softsign, F.tanhshrink, F.hardshrink, F.softshrink),
    *(torch.tanh, torch.sigmoid, torch.exp, torch.abs, torch.neg, torch.square, torch.erf, torch.sin, torch.cos),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda f: f.__name__)
def test_a_fixed_channel_stays_fixed_at_the_value_of_the_activation(activation: Callable[..., Tensor]) -> None:
    model = tiny(activation, dead=[0], fixed=[3])
    out = recorded(model).nodes[-2].output
    assert chosen(out.fixed) == [0, 3]
    expected = activation(torch.stack([torch.zeros(()).double(), model.norm.bias.detach()[3]]))
    assert torch.allclose(torch.from_numpy(out.numbers[[0, 3]]), expected)
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert same(model, small.model, OTHER)


def test_every_operator_of_the_table_is_a_name_of_torch() -> None:
    spaces = (torch, F, torch.Tensor)
    known = {"rpow", "rdiv", "rtruediv", "rsub", "log_sigmoid"}
    assert not [name for name in OPERATORS if name not in known and not any(hasattr(s, name) for s in spaces)]


@pytest.mark.parametrize(
    "between",
    [lambda y: y * y.shape[-1], lambda y: y + float(y.shape[-1]), lambda y: 1 - y, lambda y: y / (y.shape[-1] + 1)],
)
def test_a_number_of_the_code_makes_a_constant_unknown(between: Callable[[Tensor], Tensor]) -> None:
    model = tiny(between, fixed=[3])
    assert not recorded(model).nodes[-2].output.fixed.any()
    assert same(model, ds.compact(model, X).model, OTHER)


def test_zero_times_a_number_from_the_shape_is_zero() -> None:
    model = tiny(lambda y: y * y.shape[-1], dead=[1])
    assert chosen(node_of(recorded(model), "mul").output.fixed) == [1]
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 7
    assert same(model, small.model, OTHER)


class Pair(nn.Module):
    """Two branches and a way to join them."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6))
        self.b = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6))
        self.head = nn.Conv2d(6, 2, 1)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.join(self.a(x), self.b(x)))


def pair(join: Callable[[Tensor, Tensor], Tensor]) -> Pair:
    torch.manual_seed(0)
    model = randomise(Pair(join))
    zero_channels(model.a[1], [0, 1])
    zero_channels(model.b[1], [1, 2])
    return model  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("join", "live"),
    [
        (torch.add, [0, 2, 3, 4, 5]),
        (torch.sub, [0, 2, 3, 4, 5]),
        (torch.maximum, [0, 2, 3, 4, 5]),
        (torch.mul, [3, 4, 5]),
        (lambda a, b: a / (b * b).exp(), [2, 3, 4, 5]),
    ],
    ids=["add", "sub", "maximum", "mul", "div"],
)
def test_joined_channels(join: Callable[[Tensor, Tensor], Tensor], live: list[int]) -> None:
    model = pair(join)
    analysis = analysed(model)
    joined = analysis.layers[-1][1].input
    assert chosen(~joined.fixed) == live
    assert chosen(joined.keep) == live
    small = ds.compact(model, X)
    assert small.model.head.in_channels == len(live)
    assert small.model.b[0].out_channels == len(set(live) - {1, 2})
    assert same(model, small.model, OTHER)


def test_a_product_reads_nothing_of_a_factor_whose_partner_is_zero() -> None:
    analysis = analysed(pair(torch.mul))
    a, b = node_of(analysis.graph, "mul").inputs
    assert chosen(a.need) == chosen(b.need) == [3, 4, 5]


class Attention(nn.Module):
    """One channel that scales all others."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one(x).sigmoid()


def test_one_channel_is_broadcast_over_all() -> None:
    model = tiny(Attention(), dead=[0, 4])
    mul = node_of(analysed(model).graph, "mul")
    assert chosen(mul.output.keep) == complement(0, 4)
    assert mul.inputs[1].keep.tolist() == [True]
    small = ds.compact(model, X)
    assert (small.model.between.one.in_channels, small.model.between.one.out_channels) == (6, 1)
    assert same(model, small.model, OTHER)


def test_operands_whose_channels_lie_elsewhere_are_kept() -> None:
    model = pair(lambda a, b: torch.cdist(a.mean((2, 3)), b.mean((2, 3))))
    model.head = nn.Linear(2, 2).double()
    small = ds.compact(model, X)
    assert any("cdist" in entry.reason for entry in small.kept)
    assert same(model, small.model, torch.randn(2, 3, 5, 5).double())


class Scaled(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_parameter_along_the_channels_is_sliced_with_them() -> None:
    model = tiny(Scaled((8, 1, 1)), dead=[0, 1])
    small = ds.compact(model, X)
    assert small.model.between.scale.shape == (6, 1, 1)
    assert same(model, small.model, OTHER)


def test_a_zero_of_a_parameter_kills_its_channel() -> None:
    model = tiny(Scaled((8, 1, 1)))
    model.between.scale.data[[2, 6]] = 0
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert same(model, small.model, OTHER)


def test_a_single_number_as_a_parameter_keeps_constants() -> None:
    model = tiny(Scaled(()), fixed=[3])
    assert chosen(node_of(recorded(model), "mul").output.fixed) == [3]
    assert same(model, ds.compact(model, X).model, OTHER)


def test_plus_zero_is_the_same_value() -> None:
    model = pair(torch.add)
    zero_channels(model.b[1])
    node = node_of(recorded(model), "add")
    assert node.output.origin is node.inputs[0].origin


def test_dropout_in_eval_mode_gives_its_operand_back_and_in_training_mode_does_not() -> None:
    node = node_of(recorded(tiny(nn.Dropout(0.5), dead=[0])), "dropout")
    assert node.output.origin is node.inputs[0].origin
    always = node_of(recorded(tiny(lambda y: F.dropout(y, 0.5, training=True))), "dropout")
    assert always.rule is OPAQUE


@pytest.mark.parametrize(
    "between", [lambda y: y.relu_(), lambda y: F.relu(y, inplace=True), lambda y: y.mul_(y.sigmoid()), lambda y: -y]
)
def test_in_place_forms_are_the_same_operator(between: Callable[[Tensor], Tensor]) -> None:
    model = tiny(between, dead=[1, 4])
    small = ds.compact(model, X)
    assert small.model.head.in_channels == 6
    assert not small.kept
    assert same(model, small.model, OTHER)


@pytest.mark.filterwarnings("ignore:the forward pass:diffsparse.SparsityWarning")
def test_data_read_into_python_is_read_whole() -> None:
    def scaled(y: Tensor) -> Tensor:
        return y * float(y.mean((0, 2, 3)).sum())

    model = tiny(scaled, dead=[0], fixed=[3])
    small = ds.compact(model, X)
    assert same(model, small.model, OTHER)


def test_live_channels_are_those_left_over() -> None:
    assert chosen(analysed(tiny(F.relu, dead=[7], fixed=[0])).layers[-1][1].columns) == complement(0, 7)
