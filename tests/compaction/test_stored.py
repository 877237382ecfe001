"""Tensors computed from parameters and buffers alone: what they make dead goes, and nothing else changes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise
from tests.compaction.oracle import live_macs
from tests.compaction.stored import nets

NETS = nets()
X = torch.randn(1, 3, 12, 12).double()


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]().double().eval()


def near(expected: Tensor, got: Tensor) -> bool:
    return bool((expected - got).abs().max() <= 1e-9 * expected.abs().max())


@pytest.mark.parametrize("name", NETS)
def test_exact_and_no_larger_than_what_is_live(name: str) -> None:
    net = made(name)
    small = ds.compact(net, X)
    assert not small.fallbacks
    for shape in ((1, 3, 12, 12), (3, 3, 9, 14), (2, 3, 17, 8)):
        x = torch.randn(shape).double()
        with torch.no_grad():
            assert near(net(x), small.model(x))
    live = live_macs(materialise(net), lambda seed: (torch.randn(1, 3, 12, 12).double(),))
    assert small.after.macs <= 1.01 * live.live
    assert live.live < small.before.macs


@pytest.mark.parametrize("name", NETS)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    small = ds.compact(made(name), X)
    ds.save(small, tmp_path / "net")
    torch.manual_seed(1)
    again = ds.load(tmp_path / "net", NETS[name]().double().eval())
    assert torch.equal(again(X), small.model(X))


@pytest.mark.parametrize("name", NETS)
def test_trains_on(name: str) -> None:
    net = made(name).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    small = ds.compact(net, X)
    later = ds.slice_optimizer(optimizer, net, small)
    batch = torch.randn(4, 3, 12, 12).double()
    before = small.model(batch).detach()
    small.model(batch).square().mean().backward()
    later.step()
    assert not torch.equal(small.model(batch), before)
