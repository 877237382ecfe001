"""Networks with random zeros become as small as their structure allows, worked out by hand for each."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.models import create
from tests.compaction.nets import randomise, same
from tests.models.figures import gates, zero_gates


def densenet_macs(model: nn.Module, size: int) -> int:
    """A layer reads what its batch norm lets through, and writes what a later batch norm of its block reads."""
    alive = gates(model)
    needed = alive["bn"]
    macs = 10 * int(needed.sum())
    for stage in (4, 2, 0):
        pixels = (size >> stage // 2) ** 2
        for layer in reversed(range(len(model.stages[stage]))):
            own = alive[f"stages.{stage}.{layer}.bn"]
            new = needed[len(own) :]
            macs += 9 * pixels * int(own.sum()) * int(new.sum())
            needed = needed[: len(own)] | (own & new.any())
        if stage > 0:
            own = alive[f"stages.{stage - 1}.bn"]
            # the transition's convolution comes before its pooling
            macs += 4 * pixels * int(own.sum()) * int(needed.sum())
            needed = own
    return macs + 27 * size**2 * int(needed.sum())


def mobilenet_macs(model: nn.Module, size: int) -> int:
    """A channel crosses a depthwise convolution if the batch norms on both sides let it through."""
    alive = gates(model)
    before, out, macs, kernel = 3, alive["stem.1"], 0, 9
    for index, block in enumerate(model.blocks):
        width = int((out & alive[f"blocks.{index}.bn1"]).sum())
        macs += before * width * kernel * size**2
        size //= block.depthwise.stride[0]
        macs += width * 9 * size**2
        before, out, kernel = width, alive[f"blocks.{index}.bn2"], 1
    live = int(out.sum())
    return macs + before * live * size**2 + live * 10


def preresnet_macs(model: nn.Module, size: int) -> int:
    """The stream is read by batch norms and, where the resolution changes, wholly by a shortcut."""
    alive = gates(model)
    needed = alive["bn"]
    macs = 10 * int(needed.sum())
    for stage in (2, 1, 0):
        pixels = (size >> stage) ** 2
        for block in reversed(range(len(model.stages[stage]))):
            first, second = alive[f"stages.{stage}.{block}.bn1"], alive[f"stages.{stage}.{block}.bn2"]
            macs += 9 * pixels * int(second.sum()) * (int(first.sum()) + int(needed.sum()))
            if stage > 0 and block == 0:
                macs += pixels * len(first) * int(needed.sum())
                needed = torch.ones_like(first)
            needed = needed | first
    return macs + 27 * size**2 * int(needed.sum())


def resnet_macs(model: nn.Module, size: int) -> int:
    """The stream holds what any batch norm before it lets through; nothing after it can drop a channel."""
    alive = gates(model)
    stream = alive["stem.1"]
    macs = 49 * 3 * (size // 2) ** 2 * int(stream.sum())
    for stage, blocks in enumerate(model.stages):
        pixels = (size // 4 >> stage) ** 2
        for block in range(len(blocks)):
            place = f"stages.{stage}.{block}"
            a, b, c = (int(alive[f"{place}.bn{i}"].sum()) for i in (1, 2, 3))
            before = 4 * pixels if stage > 0 and block == 0 else pixels
            macs += before * int(stream.sum()) * a + pixels * b * (9 * a + c)
            if block == 0:
                added = alive[f"{place}.shortcut.1"]
                macs += pixels * int(stream.sum()) * int(added.sum())
                stream = added
            stream = stream | alive[f"{place}.bn3"]
    return macs + 10 * int(stream.sum())


@pytest.mark.parametrize(
    ("name", "rate", "expected"),
    [
        ("densenet40-0.25", 0.6, densenet_macs),
        ("mobilenetv1-0.25", 0.3, mobilenet_macs),
        ("preresnet20-0.5", 0.6, preresnet_macs),
        ("resnet50-0.25", 0.4, resnet_macs),
    ],
)
def test_macs_fall_to_what_is_alive(name: str, rate: float, expected: Callable[[nn.Module, int], int]) -> None:
    torch.manual_seed(0)
    model = randomise(ds.sparsify(create(name), start=0.5))
    zero_gates(model, 0.0)
    whole = ds.measure(model, torch.randn(1, 3, 32, 32, dtype=torch.float64), latency=False).macs
    assert expected(model, 32) == whole
    zero_gates(model, rate)
    small = ds.compact(model, torch.randn(1, 3, 32, 32, dtype=torch.float64))
    assert small.kept == ()
    assert small.after.macs == expected(model, 32) < 0.6 * whole
    assert same(model, small.model, torch.randn(2, 3, 40, 40, dtype=torch.float64))
