"""Constants that vary with the position are right at every input size."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.budget.shrink import shrink_in_place
from diffsparse.compaction.stretch import ConstantMap
from tests.compaction.nets import randomise, same

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31)


def images(batch: int, *sizes: int) -> Tensor:
    return torch.randn(batch, 3, *sizes, dtype=torch.float64)


def switched_off(model: nn.Module, *names: str) -> nn.Module:
    """`model` with random numbers; these batch norms are constant and not zero."""
    randomise(model)
    for name in names:
        norm = model.get_submodule(name)
        nn.init.zeros_(norm.weight)
        nn.init.uniform_(norm.bias, 0.5, 1.5)
    return model


def same_everywhere(model: nn.Module, small: nn.Module, dims: int = 2, sizes: tuple[int, ...] = SIZES) -> None:
    """Compares at all sizes that the model takes, not only square ones, and three batch sizes."""
    compared = 0
    for turn, size in enumerate(sizes):
        x = images((1, 2, 5)[turn % 3], size, *(sizes[(turn + 3 * d) % len(sizes)] for d in range(1, dims)))
        try:
            model(x)
        except RuntimeError:
            continue
        compared += 1
        assert same(model, small, x), tuple(x.shape)
    assert compared >= 4


class Branch(nn.Module):
    """A constant branch through `layers`, which starts at `norm`, added to a live one."""

    def __init__(self, *layers: nn.Module, live: nn.Module, dims: int = 2) -> None:
        super().__init__()
        self.norm = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][dims - 1](3)
        self.layers, self.live = nn.ModuleList(layers), live

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        for layer in self.layers:
            y = layer(y)
        return F.relu(y + self.live(x)).flatten(2).mean(2)


def pooled(pool: nn.Module) -> Branch:
    layers = nn.Conv2d(3, 4, 3, padding=1), pool, nn.Conv2d(4, 5, 3, padding=1), nn.BatchNorm2d(5)
    return Branch(*layers, live=nn.Sequential(nn.Conv2d(3, 5, 1), pool))


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


CHAINS = {
    "stride 2": lambda: Branch(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), live=nn.Conv2d(3, 4, 1, 2)),
    "stride 3": lambda: Branch(nn.Conv2d(3, 4, 5, 3, 2), live=nn.Conv2d(3, 4, 1, 3)),
    "dilation": lambda: Branch(nn.Conv2d(3, 4, 3, padding=2, dilation=2), live=nn.Conv2d(3, 4, 1)),
    "same padding": lambda: Branch(nn.Conv2d(3, 4, 4, padding="same"), live=nn.Conv2d(3, 4, 1)),
    "three layers": lambda: Branch(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, 2, 1, groups=2),
        nn.BatchNorm2d(6),
        nn.SiLU(),
        nn.Conv2d(6, 4, 3, padding=1),
        live=nn.Conv2d(3, 4, 1, 2),
    ),
    "max pool": lambda: pooled(nn.MaxPool2d(2)),
    "max pool, ceil": lambda: pooled(nn.MaxPool2d(3, 2, ceil_mode=True)),
    "average pool": lambda: pooled(nn.AvgPool2d(3, 2, 1)),
    "average pool, ceil": lambda: pooled(nn.AvgPool2d(3, 2, 1, ceil_mode=True)),
    "average pool, without padding": lambda: pooled(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "average pool, divisor": lambda: pooled(nn.AvgPool2d(2, divisor_override=3)),
    "max pool in the code": lambda: pooled(Function(lambda y: F.max_pool2d(y, 2))),
    "padding": lambda: pooled(nn.ConstantPad2d((1, 0, 2, 1), 0.7)),
    "permuted": lambda: pooled(Function(lambda y: y.permute(0, 2, 3, 1).transpose(1, 2).permute(0, 3, 2, 1))),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("make", CHAINS.values(), ids=CHAINS.keys())
def test_a_chain_becomes_one_map(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = switched_off(make(), "norm")
    small = ds.compact(model, images(2, 16, 13))
    assert not small.fallbacks
    assert not small.kept
    assert small.plan.layers[f"layers.{len(model.layers) - 1}"].tag == "map"
    assert small.after.macs == ds.measure(small.model.live, images(2, 16, 13), latency=False).macs
    same_everywhere(model, small.model)


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions(dims: int) -> None:
    conv = nn.Conv1d if dims == 1 else nn.Conv3d
    model = switched_off(Branch(conv(3, 4, 3, 2, 1), conv(4, 4, 2), live=conv(3, 4, 3, 2), dims=dims), "norm")
    small = ds.compact(model, images(2, *[8] * dims))
    assert isinstance(small.model.layers[1], ConstantMap)
    same_everywhere(model, small.model, dims, (2, 3, 4, 5, 6, 7, 8, 9))


LIMITS = {
    "adaptive": nn.AdaptiveAvgPool2d(4),
    "adaptive in the code": Function(lambda y: F.adaptive_avg_pool2d(y, 4)),
    "global": nn.AdaptiveAvgPool2d(1),
    "mean": Function(lambda y: y.mean((2, 3), keepdim=True)),
    "resized": Function(lambda y: F.interpolate(y, scale_factor=2)),
    "kernel by size": Function(lambda y: F.avg_pool2d(y, y.shape[-2:])),
    "padding by size": Function(lambda y: F.pad(y, (0, y.shape[-1] % 2, 0, y.shape[-2] % 3))),
    "slice": Function(lambda y: y[:, :, 1:, 1:]),
}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
def test_what_cannot_be_followed_is_computed_from_the_map_before_it(limit: nn.Module) -> None:
    model = switched_off(pooled(limit), "norm")
    small = ds.compact(model, images(2, 16, 13))
    assert isinstance(small.model.layers[0], ConstantMap)
    assert "layers.2: conv2d: the same for every input" in str(small.plan)
    same_everywhere(model, small.model)


def test_a_transposed_convolution_stays() -> None:
    layers = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    model = switched_off(Branch(*layers, live=nn.ConvTranspose2d(3, 4, 1, stride=2)), "norm")
    small = ds.compact(model, images(2, 8, 6))
    assert "kept layers.0: conv_transpose2d" in str(small.plan)
    same_everywhere(model, small.model)


def test_pieces_of_a_split_have_sizes_of_their_own() -> None:
    class Pieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.live = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)
            self.first, self.second = (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            left, right = self.norm(x).tensor_split(2, 3)
            return torch.cat([self.first(left), self.second(right)], 3) + self.live(x)

    model = switched_off(Pieces(), "norm")
    same_everywhere(model, ds.compact(model, images(2, 8, 8)).model)


def test_the_code_of_a_traced_model_may_compute_numbers() -> None:
    model = switched_off(pooled(LIMITS["padding by size"]), "norm")
    traced = torch.fx.symbolic_trace(model)
    same_everywhere(model, ds.compact(traced, images(2, 16, 13)).model)


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3, padding=1)
        self.mix, self.live = nn.Linear(8, 8), nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self._tokens(self.conv(self.norm(x)))) + self._tokens(self.live(x))

    @staticmethod
    def _tokens(y: Tensor) -> Tensor:
        return y.flatten(2).permute(2, 0, 1)


def test_the_batch_need_not_be_the_first_dimension() -> None:
    model = switched_off(SequenceFirst(), "norm")
    same_everywhere(model, ds.compact(model, images(2, 6, 6)).model)


class RowsFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3, padding=1)
        self.mix, self.live = nn.Linear(8, 8), nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y, live = self.conv(self.norm(x)), self.live(x)
        return self.mix(F.gelu(y.permute(2, 3, 0, 1))) + live.permute(2, 3, 0, 1)


def test_a_map_has_its_batch_where_the_layer_had_it() -> None:
    model = switched_off(RowsFirst(), "norm")
    small = ds.compact(model, images(2, 6, 6))
    assert isinstance(small.model.mix, ConstantMap)
    same_everywhere(model, small.model)


class Sum(nn.Module):
    """Two constant branches that meet; one of them starts at another resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4)
        self.first, self.second = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, 2, 1)
        self.conv, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        below = self.down(x)
        constant = self.conv(self.norm(below)) * self.second(self.first(x))
        return below + self.last(torch.cat([constant[:, :0], constant], 1))


def test_branches_of_different_resolution_meet() -> None:
    model = switched_off(Sum(), "norm", "first")
    small = ds.compact(model, images(2, 9, 12))
    same_everywhere(model, small.model)


class Outer(nn.Module):
    """The size is lost inside of a block, and known outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.tail = pooled(nn.MaxPool2d(2)), nn.Linear(5, 2)

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        return self.tail(self.block(x if more is None else torch.cat([x, more])))


def test_a_size_is_noted_by_the_innermost_module_that_sees_it() -> None:
    model = switched_off(Outer(), "block.norm")
    small = ds.compact(model, (images(2, 16, 16), images(1, 16, 16)))
    assert small.plan.layers["block.layers.3"].sizes_of == "block"
    same_everywhere(model, small.model)
    same_everywhere(model.block, small.model.block)
    copied = copy.deepcopy(small.model)
    x = images(2, 16, 17)
    small.model(images(2, 31, 31))
    assert same(model, copied, x)
    assert same(model, nn.Sequential(copied), x)


def test_a_map_that_is_called_by_itself_says_what_it_lacks() -> None:
    model = switched_off(Outer(), "block.norm")
    small = ds.compact(model, images(2, 16, 16)).model
    with pytest.raises(RuntimeError):
        small(torch.zeros(2, 4, 16, 16, dtype=torch.float64))
    with pytest.raises(ds.SparsityError, match="size follows from the input of a module around it"):
        small.block.layers[3](torch.zeros(2, 1, 8, 8))


def test_an_image_that_is_too_small_is_refused() -> None:
    model = switched_off(Branch(nn.Conv2d(3, 4, 5, padding=1), live=nn.Conv2d(3, 4, 3)), "norm")
    small = ds.compact(model, images(2, 8, 8)).model
    with pytest.raises(ds.SparsityError, match=r"input of shape \(1, \d, 2, 8\) is too small"):
        small.layers[0](images(1, 2, 8))


def test_files_and_plans_replay(tmp_path: Path) -> None:
    model = switched_off(Outer(), "block.norm")
    small = ds.compact(model, images(2, 16, 16))
    ds.save(small, tmp_path / "net.safetensors")
    same_everywhere(model, ds.load(tmp_path / "net.safetensors", Outer().double().eval()))


def test_a_model_that_becomes_small_in_place_notes_sizes() -> None:
    model = switched_off(Outer(), "block.norm")
    before = copy.deepcopy(model)
    shrink_in_place(model, ds.compact(model, images(2, 16, 16)))
    assert isinstance(model.block.layers[3], ConstantMap)
    same_everywhere(before, model)
    with pytest.raises(RuntimeError):
        model(torch.zeros(2, 4, 16, 16, dtype=torch.float64))
    with pytest.raises(ds.SparsityError, match="size follows from"):
        model.block.layers[3](torch.zeros(2, 1, 8, 8))


def test_a_compact_model_inside_of_another_is_saved_with_it(tmp_path: Path) -> None:
    model = switched_off(Outer(), "block.norm")
    ds.save(nn.Sequential(ds.compact(model, images(2, 16, 16)).model), tmp_path / "net.safetensors")
    same_everywhere(model, ds.load(tmp_path / "net.safetensors", nn.Sequential(Outer()).double().eval()))


def test_a_compiled_model_follows_the_size() -> None:
    model = switched_off(Outer(), "block.norm")
    small = torch.compile(ds.compact(model, images(2, 16, 16)).model, backend="eager")
    for size in (16, 17, 9):
        assert same(model, small, images(2, size, size))


def test_what_is_given_out_may_be_written_to_and_is_in_the_state() -> None:
    made, x = ConstantMap([1, 3], [None, None]), torch.zeros(1, 3)
    made(x).add_(1)
    assert made(x).eq(0).all()
    assert list(made.state_dict()) == ["table"]
    assert str(made) == "ConstantMap((1, 3))"


def test_compact_twice() -> None:
    model = switched_off(Outer(), "block.norm")
    twice = ds.compact(ds.compact(model, images(2, 16, 16)).model, images(2, 16, 16))
    same_everywhere(model, twice.model)


def test_a_mean_of_a_map_differs_with_the_size() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv, self.live = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.head = nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            border = self.conv(self.norm(x))
            y = self.live(self.conv(x)) + border.mean()
            out: Tensor = self.head(y.mean((2, 3), keepdim=True))
            return out

    model = Shifted().double().eval()
    model.norm.weight.data.zero_()
    model.norm.bias.data.fill_(1)
    model.live.weight.data[:2] = 0
    small = ds.compact(model, torch.randn(2, 3, 8, 8).double())
    assert not small.fallbacks
    other = torch.randn(2, 3, 5, 9).double()
    assert torch.allclose(model(other), small.model(other), rtol=1e-12)
