"""`optimize="latency"`: exact whatever the clock says, never slower than the original, the same from a file."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction import fastest
from diffsparse.compaction.widening import WHOLE, Widening
from diffsparse.models import PreResNet, ResNet
from diffsparse.testing import zero_random_channels
from tests.compaction.nets import randomise

X = torch.randn(2, 3, 16, 16)


def half_dead(kind: str) -> nn.Module:
    torch.manual_seed(0)
    made = {"pre": lambda: PreResNet(8, width=10), "post": lambda: ResNet(4, blocks=(2,), width=10)}[kind]()
    model, generator = randomise(made).float().eval(), torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            zero_random_channels(module, 0.5, generator)
    return model


class FakeClock:
    """Gives each network the time that `price` says, in place of `interleaved_seconds`."""

    def __init__(self, price: Callable[[nn.Module], float]) -> None:
        self.price, self.raced = price, 0

    def __call__(self, calls: Sequence[Any], **_: object) -> list[list[float]]:
        self.raced += len(calls)
        return [[self.price(call.args[0])] * 3 for call in calls]


def use(monkeypatch: pytest.MonkeyPatch, price: Callable[[nn.Module], float]) -> FakeClock:
    clock = FakeClock(price)
    monkeypatch.setattr(fastest, "interleaved_seconds", clock)
    return clock


def layers_of(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def macs(model: nn.Module) -> float:
    """As if all images had one pixel."""
    return float(sum(conv.weight.numel() for conv in layers_of(model)))


def steps_of_eight(model: nn.Module) -> float:
    """A machine on which a layer of 1 to 8 channels takes the same time, and adaptors take a lot."""
    cost = sum(-(-conv.in_channels // 8) * -(-conv.out_channels // 8) for conv in layers_of(model))
    return cost + 20 * sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def few_modules(model: nn.Module) -> float:
    return float(1 + sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()))


def likes_wide(model: nn.Module) -> float:
    return 1 / sum(conv.out_channels for conv in layers_of(model))


PRICES = [macs, steps_of_eight, few_modules, likes_wide]


@pytest.mark.parametrize("kind", ["pre", "post"])
@pytest.mark.parametrize("price", PRICES)
def test_it_is_exact_at_several_sizes_and_from_a_file(
    kind: str, price: Callable[[nn.Module], float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = half_dead(kind)
    use(monkeypatch, price)
    small = ds.compact(model, X, optimize="latency", seconds=0.5)
    assert price(small.model) <= price(model)
    ds.save(small, tmp_path / "small.safetensors")
    loaded = ds.load(tmp_path / "small.safetensors", copy.deepcopy(model)).eval()
    assert ds.Plan.from_json(small.plan.to_json()) == small.plan
    for size in ((2, 3, 16, 16), (3, 3, 21, 18)):
        x = torch.randn(size)
        with torch.no_grad():
            expected = model(x)
            assert torch.allclose(small.model(x), expected, atol=1e-4)
            assert torch.equal(loaded(x), small.model(x))


@pytest.mark.parametrize("kind", ["pre", "post"])
@pytest.mark.parametrize("price", PRICES[:3])
def test_it_is_no_slower_than_any_plan_of_the_other_options(
    kind: str, price: Callable[[nn.Module], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = half_dead(kind)
    monkeypatch.setattr(fastest, "OPTIONS", ())
    use(monkeypatch, price)
    best = price(ds.compact(model, X, optimize="latency", seconds=60).model)
    for options in ({}, {"round_to": 4}, {"round_to": 8}, {"round_to": 16}, {"fold": True}):
        assert best <= price(ds.compact(model, X, **options).model)


def test_if_nothing_helps_the_widths_stay_and_this_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = half_dead("post")
    widths = [conv.weight.shape for conv in layers_of(model)]
    use(monkeypatch, lambda net: 1.0 if [conv.weight.shape for conv in layers_of(net)] == widths else 2.0)
    small = ds.compact(model, X, optimize="latency", seconds=1, fold=False)
    assert [conv.weight.shape for conv in layers_of(small.model)] == widths
    assert not small.plan.layers
    assert "no smaller network is faster" in small.kept[0].reason
    assert small.choice is not None
    assert small.choice.seconds_after == small.choice.seconds_before


def test_batch_norms_stay_if_folding_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, few_modules)
    model = half_dead("pre")
    norms = few_modules(ds.compact(model, X).model)
    assert few_modules(ds.compact(model, X, optimize="latency", seconds=1, fold=False).model) == norms
    assert few_modules(ds.compact(model, X, optimize="latency", seconds=1).model) < norms


def test_single_layers_are_tried_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "VARIANTS", ())
    monkeypatch.setattr(fastest, "interleaved_seconds", clock := FakeClock(steps_of_eight))
    model = half_dead("pre")
    small = ds.compact(model, X, optimize="latency", seconds=60, fold=False)
    assert " channels: " in str(small.choice)
    assert steps_of_eight(small.model) < steps_of_eight(ds.compact(model, X).model)
    assert clock.raced > 4


def test_without_adaptors_layers_take_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = half_dead("pre"), {}

    def adaptors(net: nn.Module) -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())

    use(monkeypatch, lambda net: 1.0 + adaptors(net) + (100 if macs(net) == macs(model) else 0))
    for tied in (False, True):
        monkeypatch.setattr(fastest, "VARIANTS", ((Widening(selects=not tied, expands=not tied), False),))
        small = ds.compact(model, X, optimize="latency", seconds=0)
        found[tied] = adaptors(small.model), macs(small.model)
    assert found[False][0] > found[True][0] == 0
    assert found[False][1] < found[True][1] < macs(model)


def test_choices_in_words() -> None:
    assert str(Widening(round_to=8, selects=False)) == "round_to=8, no select"
    assert str(Widening(round_to=WHOLE)) == "all channels"
    assert str(Widening(widths={64: Widening(round_to=4)})) == "lossless; 64 channels: round_to=4"


def test_the_real_clock_and_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    model = half_dead("post")
    small = ds.compact(model, X, optimize="latency", seconds=0.1, backend="onnxruntime")
    assert small.choice is not None
    assert small.choice.backend == "onnxruntime"
    assert "ms of" in str(small)
    assert torch.allclose(small.model(X), model(X), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimize": "speed"}, "optimize must be 'latency' or None, got 'speed'"),
        ({"optimize": "latency", "backend": "tensorrt"}, "backend must be one of torch, onnxruntime, got 'tensorrt'"),
        ({"optimize": "latency", "seconds": -1}, "seconds must be"),
        ({"optimize": "latency", "round_to": 8}, "leave out round_to=8"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ds.SparsityError, match=words):
        ds.compact(half_dead("post"), X, **options)
