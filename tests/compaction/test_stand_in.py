"""Code that reads attributes of modules that are gone."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.adaptors import Constant, PassOn
from diffsparse.compaction.stand_in import StandIn, become
from tests.compaction.nets import randomise, same

X = torch.randn(2, 3, 8, 8, dtype=torch.float64)


class Block(nn.Module):
    scale = 2

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.number = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), 0
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 1))

    @property
    def width(self) -> int:
        return self.conv.out_channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.inner(self.conv(x)))


class Reads(nn.Module):
    """Asks its blocks something before it runs them."""

    def __init__(self, ask: Callable[[Any], bool]) -> None:
        super().__init__()
        self.stem, self.blocks, self.ask = nn.Conv2d(3, 8, 1), nn.ModuleList([Block(), Block()]), ask

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.ask(block) else -x
        return x


def dead_block(ask: Callable[[Any], bool]) -> Reads:
    model = randomise(Reads(ask))
    model.blocks[0].norm.weight.data.zero_()
    model.blocks[0].norm.bias.data.zero_()
    return model  # type: ignore[return-value]


@pytest.mark.parametrize(
    "ask",
    [
        lambda block: block.number == 0,
        lambda block: block.scale == 2,
        lambda block: block.width == 8,
        lambda block: block.conv.stride == (1, 1),
        lambda block: block.inner[0].kernel_size == (1, 1) and len(block.inner) == 1,
        lambda block: block.conv.weight.dtype == torch.float64,
        lambda block: tuple(block.norm.running_mean.shape) == (8,),
    ],
    ids=["number", "class attribute", "property", "nested", "in a sequence", "dtype", "buffer"],
)
def test_a_dead_block_answers_what_it_answered_before(ask: Callable[[Any], bool]) -> None:
    model = dead_block(ask)
    small = ds.compact(model, X)
    assert not small.fallbacks
    assert isinstance(small.model.blocks[0], PassOn)
    assert same(model, small.model, X)


class DeadLayer(nn.Module):
    def __init__(self, ask: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.live, self.ask = nn.Conv2d(3, 8, 1), ask

    def forward(self, x: Tensor) -> Tensor:
        assert self.ask(self.conv)
        return self.norm(self.conv(self.first(x).to(self.conv.weight.dtype))) + self.live(x)


def dead_layer(ask: Callable[[Any], Any] = lambda conv: True) -> DeadLayer:
    model = randomise(DeadLayer(ask))
    model.norm.weight.data.zero_()
    return model  # type: ignore[return-value]


def test_the_dtype_of_a_dead_layer_costs_nothing() -> None:
    model = dead_layer(lambda conv: conv.out_channels == 8)
    small = ds.compact(model, X)
    assert same(model, small.model, X)
    assert not small.kept
    assert small.after.macs < 0.05 * small.before.macs


def test_code_that_insists_on_the_class_keeps_one_channel_and_says_so() -> None:
    model = dead_layer(lambda conv: isinstance(conv, nn.Conv2d))
    small = ds.compact(model, X)
    assert same(model, small.model, X)
    assert small.model.conv.weight.shape[:2] == (1, 1)
    assert small.after.macs < 0.06 * small.before.macs
    assert {entry.layer for entry in small.kept} >= {"first", "conv", "norm"}
    assert "it could go" in small.kept[0].reason
    assert "the model failed: assert False" in small.kept[0].reason
    assert "\n" not in small.kept[0].reason


def test_grouped_layers_stay_with_one_group() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=4), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.b, nn.Conv2d)
            return self.norm(self.b(self.a(x))) + x[:, :1, 2:, 2:]

    model = randomise(Grouped())
    model.norm.weight.data.zero_()
    small = ds.compact(model, X)
    assert small.model.b.groups == 1
    assert same(model, small.model, X)


def test_a_sequence_that_is_indexed_keeps_its_places() -> None:
    class Indexed(nn.Sequential):
        """Its own code counts on four modules, `nn.Sequential.forward` runs them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = Indexed(nn.Conv2d(3, 8, 1), Block(), Block(), nn.Conv2d(8, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) * self.layers[3].out_channels

    model = randomise(Net())
    model.layers[1].norm.weight.data.zero_()
    model.layers[1].norm.bias.data.zero_()
    small = ds.compact(model, X)
    assert same(model, small.model, X)
    assert len(small.model.layers) == 4
    assert small.model.layers[1].number == 0
    assert not small.kept


def gone() -> StandIn:
    stand_in = PassOn()
    stand_in.stand_for(randomise(Block()))
    return stand_in


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_answer_too_and_need_no_memory(again: Callable[[nn.Module], Any]) -> None:
    made = again(gone())
    assert type(made) is PassOn
    assert (made.number, made.conv.stride, made.inner[0].out_channels) == (0, (1, 1), 8)
    assert made.conv.weight.untyped_storage().nbytes() == 8
    assert made.conv.weight.isnan().all()
    assert not [*made.state_dict(), *made.parameters(), *made.buffers(), *made.children()]


def test_tensors_follow_the_model_to_another_dtype_and_device() -> None:
    made = gone().half()
    assert made.conv.weight.dtype == torch.float16
    assert made.conv.weight.untyped_storage().nbytes() == 2
    assert made.norm.num_batches_tracked.dtype == torch.int64
    assert made.to("meta").norm.running_mean.is_meta


def test_what_nobody_had_is_still_an_error() -> None:
    with pytest.raises(AttributeError, match="colour"):
        _ = gone().colour
    with pytest.raises(AttributeError, match="colour"):
        _ = PassOn().colour


def test_a_module_stays_the_same_object() -> None:
    module = nn.Linear(2, 2)
    holder = [module]
    become(module, Constant(3, -1))
    assert type(holder[0]) is Constant
    assert holder[0].in_features == 2
    assert holder[0](torch.ones(1, 2)).shape == (1, 3)


def test_a_saved_model_reads_attributes_after_loading(tmp_path: Path) -> None:
    def number_is_zero(block: Any) -> bool:
        return bool(block.number == 0 and block.conv.weight.dtype.is_floating_point)

    model = dead_block(number_is_zero)
    small = ds.compact(model, X)
    ds.save(small, tmp_path / "net.safetensors")
    again = ds.load(tmp_path / "net.safetensors", randomise(Reads(number_is_zero)))
    assert same(small.model, again, X)


@pytest.mark.filterwarnings("ignore:the output of MobileNet:diffsparse.SparsityWarning")
@pytest.mark.parametrize("name", ["MobileNetV1", "MobileNetV2"])
def test_mobile_nets_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(image_size=32, depth_multiplier=0.25)
    base = randomise(getattr(transformers, f"{name}Model")(config))
    norms = [key for key, module in base.named_modules() if isinstance(module, nn.BatchNorm2d)]
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    for dead in norms[::6]:
        model = copy.deepcopy(base)
        model.get_submodule(dead).weight.data.zero_()
        small = ds.compact(model, x)
        assert not small.fallbacks
        assert torch.allclose(small.model(x)[0], model(x)[0], rtol=0, atol=1e-9)
