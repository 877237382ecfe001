"""A plan applied: tensors sliced, attributes true, gradients and ties kept."""

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction.actions import Remove
from diffsparse.compaction.adaptors import FILL, Constant
from diffsparse.compaction.apply import PlanTensors, write_plan_tensors
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.stretch import ConstantMap
from diffsparse.compaction.tensor_slice import TensorSlice, slice_tensor
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, X, complement, tiny

T = torch.arange(24.0).view(4, 3, 2)


def test_slices_along_several_dimensions() -> None:
    assert torch.equal(slice_tensor(T, TensorSlice(dims={0: [1, 3], 2: [0]})), T[[1, 3]][:, :, :1])
    assert torch.equal(slice_tensor(T, TensorSlice(dims={})), T)


def test_groups_keep_their_own_columns() -> None:
    got = slice_tensor(T, TensorSlice(dims={0: [0, 1, 2, 3]}, columns=[[0, 1], [1, 2]]))
    assert torch.equal(got, torch.cat([T[:2, :2], T[2:, 1:]]))


def test_uneven_groups_are_padded_with_zeros() -> None:
    got = slice_tensor(T, TensorSlice(dims={0: [0, 2, 3]}, columns=[[2], [0, 1]], heights=[1, 2]))
    assert torch.equal(got[0, 0], T[0, 2])
    assert got[0, 1].eq(0).all()
    assert torch.equal(got[1:], T[2:, :2])


@pytest.mark.parametrize("trained", [True, False])
def test_requires_grad_is_kept(trained: bool) -> None:
    model = tiny(dead=[0, 1])
    model.conv.weight.requires_grad_(trained)
    small = ds.compact(model, X).model
    assert small.conv.weight.shape[0] == 6
    assert small.conv.weight.requires_grad is trained
    assert small.norm.weight.requires_grad
    assert not small.norm.running_mean.requires_grad


def test_sliced_weights_are_leaves_with_memory_of_their_own() -> None:
    model = tiny(dead=[0])
    small = ds.compact(model, X).model
    before = model.conv.weight.clone()
    small.conv.weight.data.zero_()
    assert small.conv.weight.is_leaf
    assert torch.equal(model.conv.weight, before)


def test_attributes_are_true() -> None:
    model = tiny(nn.ConvTranspose2d(8, 6, 3, groups=2), dead=[0, 4], head=6)
    model.head.weight.data[:, [0, 3]] = 0
    small = ds.compact(model, X).model
    assert (small.conv.in_channels, small.conv.out_channels, small.norm.num_features) == (3, 6, 6)
    assert (small.between.in_channels, small.between.out_channels, small.between.groups) == (6, 4, 2)
    assert small.head.in_channels == 4
    assert "Conv2d(3, 6" in str(small)


def test_a_new_bias_has_the_dtype_of_the_layer() -> None:
    model = tiny(fixed=[2], head=nn.Conv2d(8, 3, 1, bias=False))
    assert ds.compact(model, X).model.head.bias.dtype == torch.float64


def test_half_precision_stays_half_precision() -> None:
    model = tiny(nn.ReLU(), dead=[0, 3], fixed=[5]).bfloat16()
    small = ds.compact(model, X.bfloat16())
    assert {p.dtype for p in small.model.parameters()} == {torch.bfloat16}
    assert small.model.conv.out_channels == 5
    assert small.max_difference < 5e-2


def test_a_layer_of_half_precision_that_dies_leaves_a_constant_of_half_precision() -> None:
    model = tiny(dead=range(8)).bfloat16()
    with pytest.warns(ds.SparsityWarning):
        small = ds.compact(model, X.bfloat16()).model
    assert small.head.numbers.dtype == torch.bfloat16
    assert small(OTHER.bfloat16()).dtype == torch.bfloat16


def test_hooks_of_the_user_stay_on_layers_that_stay() -> None:
    seen: list[tuple[int, ...]] = []
    model = tiny(dead=[0, 1])
    model.conv.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    small = ds.compact(model, X).model
    seen.clear()
    small(OTHER)
    assert seen == [(3, 6, 12, 10)]


def test_hooks_of_the_user_that_change_a_tensor_keep_their_effect() -> None:
    model = tiny(dead=[0, 1])
    model.conv.register_forward_hook(lambda module, args, output: output.tanh())
    model.head.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert same(model, ds.compact(model, X).model, OTHER)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(tensors={}, layers={"tail": Remove()}), "changes 'tail', which Tiny does not have"),
        (
            Plan(tensors={"tail.weight": TensorSlice(dims={})}, layers={}),
            "slices 'tail.weight', which Tiny does not have",
        ),
        (Plan(tensors={"head.bias": TensorSlice(dims={0: [5]})}, layers={}), r"entry 5 of dimension 0 .* shape \(3,\)"),
    ],
)
def test_a_plan_of_another_model_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        ds.apply_plan(tiny(), plan)


def test_slices_are_the_channels_that_live() -> None:
    model = tiny(dead=[0, 1])
    small = ds.compact(model, X).model
    assert torch.equal(small.conv.weight, model.conv.weight[complement(0, 1)])
    assert torch.equal(small.norm.running_mean, model.norm.running_mean[complement(0, 1)])


def test_norms_without_tensors_stay_as_they_are() -> None:
    torch.manual_seed(0)
    norms = nn.InstanceNorm2d(8), nn.BatchNorm2d(4, affine=False, track_running_stats=False)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norms[0], nn.ReLU(), nn.Conv2d(8, 4, 3), norms[1]).eval()
    model[0].weight.data[:5] = 0.0
    model[0].bias.data[:5] = 0.0
    small = ds.compact(model, torch.randn(2, 3, 8, 8)).model
    assert small[0].out_channels == 3
    x = torch.randn(3, 3, 9, 9)
    assert torch.allclose(small(x), model(x), atol=1e-5)


def model() -> nn.Sequential:
    layer = nn.Linear(2, 2)
    layer.register_buffer(FILL, torch.zeros(3))
    return nn.Sequential(layer, Constant(2, -1), ConstantMap([1, 2], [None, None]))


def test_a_bias_is_added_to() -> None:
    net = model()
    before = net[0].bias.detach().clone()
    write_plan_tensors(net, PlanTensors(bias={"0": torch.tensor([1.0, -2.0], dtype=torch.float64)}))
    assert torch.allclose(net[0].bias.detach(), before + torch.tensor([1.0, -2.0]))
    assert net[0].bias.requires_grad


def test_scale_and_shift_are_taken_over_before_the_shift() -> None:
    net = model()
    x = torch.randn(4, 2)
    expected = net[0](x) * torch.tensor([2.0, 3.0]) + torch.tensor([5.0, 7.0])
    write_plan_tensors(net, PlanTensors(affine={"0": (torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0]))}))
    assert torch.allclose(net[0](x), expected, atol=1e-6)


def test_folded_inputs_are_scaled_with_the_rest() -> None:
    net = model()
    x = torch.zeros(1, 2)
    expected = (net[0](x) + 1) * 2
    affine = (torch.full((2,), 2.0), torch.zeros(2))
    write_plan_tensors(net, PlanTensors(bias={"0": torch.ones(2).double()}, affine={"0": affine}))
    assert torch.allclose(net[0](x), expected, atol=1e-6)


def test_fills_and_constants() -> None:
    net = model()
    numbers = PlanTensors(
        fill={"0": torch.tensor([1.0, 2.0, 3.0])},
        constant={"1": torch.tensor([4.0, 5.0]), "2": torch.tensor([[6.0, 7.0]])},
    )
    write_plan_tensors(net, numbers)
    assert net[0].get_buffer(FILL).tolist() == [1, 2, 3]
    assert net[1](torch.zeros(1, 9)).tolist() == [[4, 5]]
    assert net[2](torch.zeros(1, 9)).tolist() == [[6, 7]]


def test_sums_are_made_in_double_precision() -> None:
    net = nn.Sequential(nn.Linear(1, 1).bfloat16())
    net[0].bias.data.fill_(-1.0)
    # in half precision the constant itself would be rounded first
    write_plan_tensors(net, PlanTensors(bias={"0": torch.tensor([1.001], dtype=torch.float64)}))
    assert net[0].bias.item() == pytest.approx(1e-3, rel=1e-2)
