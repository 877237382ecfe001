"""Select, expand, constants and groups of different sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.compaction.adaptors import (
    FILL,
    SELECT,
    SOURCE,
    Constant,
    ExpandOutput,
    RaggedConv,
    SelectInput,
    expand_source,
    first_of_run,
)
from diffsparse.compaction.tensor_slice import slice_tensor
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, Tiny, X, tiny


def test_select_takes_channels_of_the_first_argument() -> None:
    module = nn.Identity()
    module.register_buffer(SELECT, torch.tensor([2, 0]))
    x = torch.randn(2, 3, 4)
    first, second = SelectInput(1)(module, (x, "more"))
    assert torch.equal(first, x[:, [2, 0]])
    assert second == "more"


@pytest.mark.parametrize(
    ("shape", "layout"), [((2, 5, 3, 4), torch.channels_last), ((2, 5, 3, 4, 2), torch.channels_last_3d)]
)
def test_select_keeps_the_memory_format(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    module = nn.Identity()
    module.register_buffer(SELECT, torch.tensor([0, 3, 4]))
    x = torch.randn(shape)
    for given in (x, x.to(memory_format=layout), x.transpose(2, 3)):
        (chosen,) = SelectInput(1 - len(shape))(module, (given,))
        assert torch.equal(chosen, given[:, [0, 3, 4]])
        assert chosen.is_contiguous(memory_format=layout) == given.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_expand_puts_numbers_between_channels(dtype: torch.dtype) -> None:
    module = nn.Identity()
    module.register_buffer(SOURCE, torch.tensor(expand_source([1, 2], 4, one_number=False)))
    module.register_buffer(FILL, torch.tensor([5.0, 0.0, 0.0, 7.0]))
    out = torch.randn(2, 3, 2).to(dtype)
    got = ExpandOutput(-1)(module, (), out)
    assert got.dtype == dtype
    assert torch.equal(got[..., 1:3], out)
    assert got[..., 0].eq(5).all()
    assert got[..., 3].eq(7).all()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("live", [[0, 1], [2, 3], [1, 2], [0, 3], [1, 3, 4]], ids=str)
def test_one_number_is_padded_around_or_gathered(live: list[int], layout: torch.memory_format) -> None:
    module = nn.Identity()
    module.register_buffer(SOURCE, torch.tensor(expand_source(live, 5, one_number=True)))
    module.register_buffer(FILL, torch.full([5], 2.5))
    out = torch.randn(2, len(live), 3, 4).to(memory_format=layout)
    expected = torch.full((2, 5, 3, 4), 2.5)
    expected[:, live] = out
    got = ExpandOutput(-3, 2.5, first_of_run(live))(module, (), out)
    assert torch.equal(got, expected)
    assert got.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_run_of_channels_is_sliced(layout: torch.memory_format) -> None:
    module = nn.Identity()
    module.register_buffer(SELECT, torch.tensor([1, 2, 3]))
    x = torch.randn(2, 5, 3, 4).to(memory_format=layout)
    (chosen,) = SelectInput(-3, first_of_run([1, 2, 3]))(module, (x,))
    assert torch.equal(chosen, x[:, 1:4])
    assert chosen.is_contiguous(memory_format=layout)


def test_runs() -> None:
    assert [first_of_run(each) for each in ([0, 1, 2], [3], [1, 3], [])] == [0, 3, None, None]


def test_gradients_pass_through_both() -> None:
    module = nn.Identity()
    module.register_buffer(SOURCE, torch.tensor(expand_source([1], 2, one_number=False)))
    module.register_buffer(FILL, torch.zeros(2))
    module.register_buffer(SELECT, torch.tensor([1]))
    x = torch.randn(2, 3, requires_grad=True)
    (chosen,) = SelectInput(1)(module, (x,))
    ExpandOutput(1)(module, (), chosen).sum().backward()
    assert x.grad is not None
    assert x.grad.sum(0).tolist() == [0, 2, 0]


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(3, 1, 0, 1), (3, 2, 1, 1), (2, 3, 2, 2)])
def test_a_constant_is_as_large_as_the_convolution_was(kernel: int, stride: int, padding: int, dilation: int) -> None:
    constant = Constant(4, -3, [[kernel, stride, padding, dilation]] * 2)
    for size in (7, 8, 11):
        x = torch.zeros(2, 5, size, size + 1)
        expected = F.conv2d(x, torch.zeros(4, 5, kernel, kernel), None, stride, padding, dilation)
        assert constant(x).shape == expected.shape


def test_a_constant_is_as_large_as_the_transposed_convolution_was() -> None:
    conv = nn.ConvTranspose1d(2, 3, 4, stride=3, padding=1, output_padding=2, dilation=2)
    constant = Constant(3, -2, [[4, 3, 1, 2, 2]], transposed=True)
    x = torch.zeros(2, 2, 6)
    assert constant(x).shape == conv(x).shape


def test_a_constant_of_a_linear_layer_keeps_all_other_sizes() -> None:
    constant = Constant(2, -1)
    constant.numbers.copy_(torch.tensor([1.0, 2.0]))
    got = constant(torch.zeros(4, 5, 7, dtype=torch.float64))
    assert got.dtype == torch.float64
    assert torch.equal(got, torch.tensor([1.0, 2.0]).double().expand(4, 5, 2))


def test_what_is_given_out_may_be_written_to() -> None:
    made, x = Constant(3, -3), torch.zeros(2, 3, 4, 4)
    made(x).add_(1)
    assert made(x).eq(0).all()


def test_constants_travel_in_the_state_dict_and_print() -> None:
    assert list(Constant(3, 1).state_dict()) == ["numbers"]
    assert str(Constant(3, 1)) == "Constant(3)"


def uneven(**settings: object) -> Tiny:
    model = tiny(nn.Conv2d(8, 8, 3, groups=2, **settings), dead=[0, 1, 2, 4])  # type: ignore[arg-type]
    model.head.weight.data[:, [0, 1]] = 0
    return model


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_each_group_is_a_convolution_of_its_own(dims: int, bias: bool) -> None:
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1](3, 3, 2, stride=2, padding=1, bias=bias)
    conv.weight.data[0, 1:] = 0
    ragged = RaggedConv(conv, [[1, 1], [2, 3]])
    x = torch.randn(2, 4, *[5] * dims)
    function = [F.conv1d, F.conv2d, F.conv3d][dims - 1]
    first, second = (None, None) if conv.bias is None else (conv.bias[:1], conv.bias[1:])
    expected = [function(x[:, :1], conv.weight[:1, :1], first, 2, 1), function(x[:, 1:], conv.weight[1:], second, 2, 1)]
    assert torch.allclose(ragged(x), torch.cat(expected, 1), atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "bias": False},
        {"padding": 1, "padding_mode": "circular"},
        {"padding": "same", "padding_mode": "replicate"},
    ],
)
def test_uneven_groups_stay_exact(settings: dict[str, object]) -> None:
    model = uneven(**settings)
    small = ds.compact(model, X)
    assert isinstance(small.model.between, RaggedConv)
    assert small.model.between.blocks == [(2, 1), (4, 3)]
    assert not small.fallbacks
    assert same(model, small.model, OTHER)


def test_a_constant_input_folds_into_the_bias_of_its_group() -> None:
    model = uneven(bias=False)
    model.norm.weight.data[3] = 0
    model.norm.weight.data[7] = 0
    assert same(model, ds.compact(model, X).model, OTHER)


def test_names_in_the_state_dict_are_those_of_the_convolution() -> None:
    model = uneven()
    small = ds.compact(model, X)
    assert [key for key in small.model.state_dict() if "between" in key] == ["between.weight", "between.bias"]
    fresh = ds.apply_plan(uneven(), small.plan)
    fresh.load_state_dict(small.model.state_dict())
    assert same(small.model, fresh, OTHER)


def test_fewer_channels_are_left_than_in_even_groups() -> None:
    small = ds.compact(uneven(), X)
    assert small.model.between.weight.shape == (6, 3, 3, 3)
    assert small.model.head.in_channels == 6


def test_padding_of_the_weight_gets_no_gradient() -> None:
    small = ds.compact(uneven(), X).model
    small(X).square().sum().backward()
    grad = small.between.weight.grad
    assert grad[:2, 1:].eq(0).all()
    assert grad[:2, :1].ne(0).all()


def test_state_of_an_optimizer_is_sliced_by_heights() -> None:
    model = uneven()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(X).square().sum().backward()
    optimizer.step()
    for parameter in (model.norm.weight, model.norm.bias):
        parameter.data[[0, 1, 2, 4]] = 0
    model.head.weight.data[:, [0, 1]] = 0
    small = ds.compact(model, X)
    kept = small.plan.tensors["between.weight"]
    assert kept.heights == [2, 4]
    later = ds.slice_optimizer(optimizer, model, small)
    momentum = later.state[small.model.between.weight]["momentum_buffer"]
    before = optimizer.state[model.between.weight]["momentum_buffer"]
    assert torch.equal(momentum, slice_tensor(before, kept))
    assert torch.equal(momentum[2:], before[4:, 1:])
    assert torch.equal(momentum[:2, :1], before[2:4, 3:])
    small.model(X).square().sum().backward()
    later.step()


def test_prints_its_groups() -> None:
    assert "blocks=[(2, 1), (4, 3)]" in str(ds.compact(uneven(), X).model.between)
