"""Single channels that vary with the position only: what reads them gets a map, at any input size."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.budget.shrink import shrink_in_place
from diffsparse.compaction.apply import apply_plan
from tests.compaction.nets import randomise, same
from tests.compaction.test_constants import images, same_everywhere
from tests.compaction.test_shared import killed


class Separable(nn.Module):
    """A norm, a depthwise convolution, a norm, a pointwise convolution; other layers come between."""

    def __init__(self, *between: nn.Module, dims: int = 2, **settings: Any) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
        settings = {"kernel_size": 3, "padding": 1} | settings
        self.stem, self.first = conv(3, 8, 1), norm(8)
        self.deep, self.norm = conv(8, 8, groups=8, **settings), norm(8)
        self.between, self.point = nn.Sequential(*between), conv(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.deep(self.first(self.stem(x)))))
        z: Tensor = self.point(self.between(y))
        return z


class LastNorm(nn.Module):
    """A layer norm over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.movedim(1, -1))
        return y.movedim(-1, 1)


def half_constant(*between: nn.Module, **settings: Any) -> Any:
    model: Any = randomise(Separable(*between, **settings))
    killed(model.first, 1, 3, 4, 7, shift=None)
    return model


CASES: dict[str, Any] = {
    "kernel 3": lambda: half_constant(),
    "kernel 5": lambda: half_constant(kernel_size=5, padding=2),
    "even kernel": lambda: half_constant(kernel_size=2, padding=1),
    "stride": lambda: half_constant(stride=2),
    "wide stride": lambda: half_constant(kernel_size=5, padding=1, stride=3),
    "dilated": lambda: half_constant(dilation=2, padding=2),
    "same": lambda: half_constant(padding="same"),
    "more padding than kernel": lambda: half_constant(padding=3),
    "one dimension": lambda: half_constant(dims=1),
    "three dimensions": lambda: half_constant(dims=3),
    "pools": lambda: half_constant(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True)),
    "another depthwise": lambda: half_constant(nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.ReLU6()),
    "padding module": lambda: half_constant(nn.ZeroPad2d((0, 1, 2, 0)), padding=0),
    "no bias": lambda: half_constant(bias=False),
    "layer norm": lambda: half_constant(LastNorm()),
    "dropout": lambda: half_constant(nn.Dropout(0.5), nn.Hardswish()),
}


@pytest.mark.parametrize("case", CASES)
def test_right_at_every_size(case: str) -> None:
    model, dims = CASES[case](), {"one dimension": 1, "three dimensions": 3}.get(case, 2)
    sizes = (1, 2, 3, 4, 5, 7, 8) if dims == 3 else (1, 2, 3, 4, 5, 7, 8, 16, 17, 31)
    small = ds.compact(model, images(2, *[6] * dims))
    same_everywhere(model, small.model, dims=dims, sizes=sizes)
    assert not small.fallbacks
    assert small.model.deep.out_channels == 4
    assert small.model.point.in_channels == (8 if case == "layer norm" else 4)


def test_only_what_is_read_gets_a_map() -> None:
    model = half_constant()
    model.point.weight.data[:, [1, 3]] = 0
    small = ds.compact(model, images(2, 9, 9))
    same_everywhere(model, small.model)
    maps = [name for name, action in small.plan.layers.items() if "map" in str(action)]
    assert maps == ["point"]


def test_what_stands_between_is_put_back_where_all_is_read() -> None:
    model = half_constant(LastNorm())
    small = ds.compact(model, images(2, 9, 9))
    assert [name for name, action in small.plan.layers.items() if "map" in str(action)] == ["norm"]
    # the constants, and what they are at four borders and corners
    assert tuple(small.model.norm.expand_fill.shape) == (1, 8, 4, 4)


def test_a_padded_layer_takes_constants_and_maps_alike() -> None:
    model = half_constant()
    model.point = nn.Conv2d(8, 4, 3, padding=1).double()
    killed(model.norm, 0, 5, shift=0.5)
    small = ds.compact(model, images(2, 9, 9))
    same_everywhere(model, small.model)
    assert small.model.point.in_channels == 2


def test_a_layer_that_reads_nothing_else_keeps_its_inputs() -> None:
    model = half_constant()
    model.point.weight.data[:, [0, 2, 5, 6]] = 0
    head = nn.Conv2d(3, 4, 1).double()

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.head = model, head

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x) * self.head(x)

    small = ds.compact(Beside().eval(), images(2, 9, 9))
    assert not small.fallbacks
    same_everywhere(Beside().eval(), small.model)


class WithoutMaps(Separable):
    without_maps = True


def test_a_module_may_want_none() -> None:
    model: Any = randomise(WithoutMaps())
    killed(model.first, 1, 3, 4, 7, shift=None)
    small = ds.compact(model, images(2, 9, 9))
    same_everywhere(model, small.model)
    assert small.model.point.in_channels == 8


def test_sizes_that_a_module_around_knows() -> None:
    """Behind a stride the last pixels tell no more how many there were."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = half_constant(stride=2), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.inner(x))
            return y

    model = Two().double().eval()
    small = ds.compact(model, images(2, 9, 9))
    assert small.plan.layers["inner.point"].adds.sizes_of == "inner"  # type: ignore[attr-defined]
    same_everywhere(model, small.model)
    with pytest.raises(ds.SparsityError, match="module around it"):
        small.model.inner.point(torch.randn(1, 4, 5, 5, dtype=torch.float64))


@pytest.mark.parametrize("options", [{"round_to": 4}, {"round_to": 3}, {"fold": True}, {"fold": True, "round_to": 4}])
@pytest.mark.parametrize("case", ["kernel 3", "stride", "layer norm"])
def test_with_options(case: str, options: dict[str, Any]) -> None:
    model = CASES[case]()
    model.point.weight.data[:, 3] = 0
    same_everywhere(model, ds.compact(model, images(2, 9, 9), **options).model)


@pytest.mark.parametrize("case", ["kernel 3", "stride", "layer norm"])
class TestGoesOn:
    """Compact models with maps are saved, copied, held and compacted as others are."""

    def test_saved(self, case: str, tmp_path: Path) -> None:
        model = CASES[case]()
        ds.save(ds.compact(model, images(2, 9, 9)), tmp_path / "net.safetensors")
        again = ds.load(tmp_path / "net.safetensors", CASES[case]())
        same_everywhere(model, again)

    def test_copied(self, case: str) -> None:
        model = CASES[case]()
        small = ds.compact(model, images(2, 9, 9)).model
        same_everywhere(model, copy.deepcopy(small))

    def test_compacted_again(self, case: str) -> None:
        model = CASES[case]()
        same_everywhere(model, ds.compact(ds.compact(model, images(2, 9, 9)).model, images(2, 9, 9)).model)

    def test_held_by_another_model(self, case: str, tmp_path: Path) -> None:
        model = CASES[case]()
        holder = nn.Sequential(ds.compact(model, images(2, 9, 9)).model)
        ds.save(holder, tmp_path / "net.safetensors")
        same_everywhere(model, ds.load(tmp_path / "net.safetensors", nn.Sequential(CASES[case]())))

    def test_in_place(self, case: str) -> None:
        model = CASES[case]()
        before = copy.deepcopy(model)
        shrink_in_place(model, ds.compact(model, images(2, 9, 9)))
        same_everywhere(before, model)

    def test_trained(self, case: str) -> None:
        model = CASES[case]().train()
        optimizer = torch.optim.Adam(model.parameters())
        small = ds.compact(model, images(2, 9, 9))
        others = ds.slice_optimizer(optimizer, model, small)
        small.model(images(2, 9, 9)).sum().backward()
        others.step()
        assert all(parameter.grad is not None for parameter in small.model.parameters())

    def test_in_single_precision_and_other_layouts(self, case: str) -> None:
        model = CASES[case]().float()
        small = ds.compact(model, images(2, 9, 9).float()).model
        x = images(3, 8, 7).float().to(memory_format=torch.channels_last)
        assert torch.allclose(model(x), small(x), atol=1e-5)


def test_a_plan_alone_makes_the_layers() -> None:
    model = half_constant()
    small = ds.compact(model, images(2, 9, 9))
    plan = type(small.plan).from_json(small.plan.to_json())
    bare = apply_plan(half_constant(), plan)
    bare.load_state_dict(small.model.state_dict())
    assert same(model, bare, images(3, 8, 5))
