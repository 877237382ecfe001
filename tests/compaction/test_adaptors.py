"""Select, expand and the two kinds of constants."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.compaction.adaptors import EXPAND, FILL, SELECT, Constant, ConstantMap, ExpandOutput, SelectInput


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
    module.register_buffer(EXPAND, torch.tensor([1, 2]))
    module.register_buffer(FILL, torch.tensor([5.0, 0.0, 0.0, 7.0]))
    out = torch.randn(2, 3, 2).to(dtype)
    got = ExpandOutput(-1)(module, (), out)
    assert got.dtype == dtype
    assert torch.equal(got[..., 1:3], out)
    assert got[..., 0].eq(5).all()
    assert got[..., 3].eq(7).all()


def test_gradients_pass_through_both() -> None:
    module = nn.Identity()
    module.register_buffer(EXPAND, torch.tensor([1]))
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


@pytest.mark.parametrize("made", [Constant(3, -3), ConstantMap([3, 4, 4], [None, 4, 4])])
def test_what_is_given_out_may_be_written_to(made: nn.Module) -> None:
    x = torch.zeros(2, 3, 4, 4)
    made(x).add_(1)
    assert made(x).eq(0).all()


def test_a_map_is_for_one_size_any_batch_and_any_width() -> None:
    made = ConstantMap([3, 4, 4], [None, 8, 8])
    assert made(torch.zeros(5, 1, 8, 8)).shape == (5, 3, 4, 4)
    with pytest.raises(ds.SparsityError, match=r"spatial size \[8, 8\]; got \[8, 9\]"):
        made(torch.zeros(5, 1, 8, 9))


def test_constants_travel_in_the_state_dict_and_print() -> None:
    assert list(Constant(3, 1).state_dict()) == ["numbers"]
    assert list(ConstantMap([2], [None]).state_dict()) == ["map"]
    assert str(Constant(3, 1)) == "Constant(3)"
    assert str(ConstantMap([2, 4], [None, 4])) == "ConstantMap((2, 4), input_size=[None, 4])"
