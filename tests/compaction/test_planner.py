"""From an analysis to a plan: who is sliced, where selects and expands go."""

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.actions import EmitConstant, PassThrough, RaggedSlice, Remove, Slice
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.planner import make_plan
from diffsparse.compaction.tensor_slice import TensorSlice
from diffsparse.testing import zero_channels
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, Tiny, X, analysed, complement, tiny


class Skip(nn.Module):
    """A pre-activation branch beside the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.norm(x))


def plan_of(model: nn.Module, x: Tensor = X, **options: bool) -> Plan:
    return make_plan(analysed(model, x, **options))[0]


def test_nothing_to_do_is_an_empty_plan() -> None:
    plan = plan_of(tiny())
    assert (plan.tensors, plan.layers, plan.kept) == ({}, {}, ())
    assert str(plan) == "nothing to remove"


def test_a_chain_needs_slices_only() -> None:
    model = tiny(dead=[0, 1])
    plan = plan_of(model)
    assert plan.layers["conv"] == Slice(inputs=(3, 3), outputs=(8, 6), width=6, dim=-3)
    shapes = {name: list(tensor.shape) for name, tensor in model.named_parameters()}
    assert plan.tensors["conv.weight"] == TensorSlice(dims={0: complement(0, 1)}, shape=shapes["conv.weight"])
    assert plan.tensors["head.weight"] == TensorSlice(dims={1: complement(0, 1)}, shape=shapes["head.weight"])
    assert "head.bias" not in plan.tensors


def test_statistics_are_sliced_with_the_scale() -> None:
    plan = plan_of(tiny(dead=[7]))
    names = {"weight", "bias", "running_mean", "running_var"}
    assert all(plan.tensors[f"norm.{name}"].dims == {0: complement(7)} for name in names)
    assert "norm.num_batches_tracked" not in plan.tensors


def test_a_layer_that_reads_less_than_is_there_selects() -> None:
    model = tiny(Skip())
    zero_channels(model.between.norm, [0, 1])
    plan = plan_of(model)
    assert plan.layers["between.norm"].select == complement(0, 1)
    assert plan.layers["between.norm"].expand is None
    assert plan.layers["between.conv"].inputs == (8, 6)


def test_a_layer_that_computes_less_than_is_there_expands() -> None:
    model = tiny(Skip())
    model.between.conv.weight.data[[2, 4]] = 0
    plan, numbers = make_plan(analysed(model))
    assert plan.layers["between.conv"].expand == complement(2, 4)
    assert plan.layers["between.conv"].width == 8
    assert numbers.fill["between.conv"][2].item() == pytest.approx(model.between.conv.bias[2].item())


def test_a_constant_input_becomes_a_bias() -> None:
    plan, numbers = make_plan(analysed(tiny(fixed=[1], head=nn.Conv2d(8, 3, 1, bias=False))))
    assert plan.layers["head"].adds_bias
    assert set(numbers.bias) == {"head"}


def test_a_dead_layer_becomes_a_constant_with_its_window() -> None:
    model = tiny(nn.Conv2d(8, 8, (3, 2), stride=2, padding=(1, 0)), dead=range(8))
    model.between.bias.data.zero_()
    plan = plan_of(model)
    constant = plan.layers["between"]
    assert isinstance(constant, EmitConstant)
    assert constant.window == [[3, 2, 1, 1], [2, 2, 0, 1]]


@pytest.mark.parametrize(
    ("conv", "other"),
    [
        (nn.Conv2d(8, 8, 3, padding="same"), X),
        (nn.Conv2d(8, 8, 3, padding="valid"), OTHER),
        (nn.Conv2d(8, 8, 3, stride=2, padding=2, dilation=2), OTHER),
        (nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1), OTHER),
    ],
)
def test_a_constant_has_the_size_that_the_layer_had(conv: nn.Module, other: Tensor) -> None:
    model = tiny(conv, dead=range(8))
    with pytest.warns(ds.SparsityWarning):
        small = ds.compact(model, X).model
    assert same(model, small, other)


def test_dead_modules_leave_a_sequential_and_elsewhere_an_identity() -> None:
    model = tiny(nn.Sequential(Skip(), nn.ReLU()))
    zero_channels(model.between[0].conv)
    assert plan_of(model).layers["between.0"] == Remove()
    model = tiny(Skip())
    zero_channels(model.between.conv)
    plan = plan_of(model)
    assert plan.layers["between"] == PassThrough()
    assert not [name for name in (*plan.layers, *plan.tensors) if name.startswith("between.")]


@pytest.mark.parametrize(("gone", "blocks"), [([0, 1, 2, 4], [(4, 1), (4, 3)]), ([0, 4], None)])
def test_uneven_groups_are_ragged(gone: list[int], blocks: list[tuple[int, int]] | None) -> None:
    model = tiny(nn.Conv2d(8, 8, 3, groups=2), dead=gone)
    layer = plan_of(model).layers["between"]
    assert type(layer) is (RaggedSlice if blocks else Slice)
    assert getattr(layer, "blocks", None) == blocks


def test_what_is_kept_is_said_once_a_layer() -> None:
    def between(y: Tensor) -> Tensor:
        return y.cumsum(1).cumsum(1)

    kept = plan_of(tiny(between, dead=[0])).kept
    assert [(entry.layer, entry.reason) for entry in kept] == [("", "cumsum: an operation without a rule")]


def test_a_component_with_weight_zero_leaves() -> None:
    mix = ds.SparseSum([nn.Conv2d(8, 8, 1) for _ in range(3)], ds.SignedGate.from_values([0.0, 1.0, 0.0]))
    small: ds.Compacted[Tiny] = ds.compact(tiny(mix), X)
    assert small.plan.layers["between.components.0"] == Remove()
    assert small.model.between.weights.shape == (1,)
    assert torch.isfinite(small.model(OTHER)).all()


def test_a_component_that_leaves_takes_its_numbers_and_its_own_parts_along() -> None:
    inner = ds.SparseSum([nn.Conv2d(8, 8, 1) for _ in range(2)], ds.SignedGate.from_values([0.0, 1.0]))
    mix = ds.SparseSum([nn.Conv2d(8, 8, 1), inner, nn.Conv2d(8, 8, 1)], ds.SignedGate.from_values([0.0, 0.0, 1.0]))
    plan, numbers = make_plan(analysed(materialise(tiny(mix, fixed=[1]))))
    assert {name for name, action in plan.layers.items() if action == Remove()} == {
        "between.components.0",
        "between.components.1",
    }
    assert set(numbers.bias) == {"between.components.2"}
    assert not [name for name in plan.tensors if name.startswith("between.components.1")]


def test_a_dead_component_that_is_also_constant_leaves_with_its_constant() -> None:
    constant = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1))
    zero_channels(constant[1])
    constant[1].bias.data.fill_(1.0)
    total = ds.SparseSum([constant, nn.Conv2d(3, 4, 1)], ds.SignedGate.from_values([0.0, 0.5]))
    model = nn.Sequential(total, nn.ReLU()).eval()
    x = torch.randn(2, 3, 6, 6)
    assert torch.allclose(ds.compact(model, x).model(x), model(x), atol=1e-6)
