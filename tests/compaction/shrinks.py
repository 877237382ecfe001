"""What every operator has to show: its net becomes as small as what is live, and stays exact at other sizes."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.example import Example
from diffsparse.measuring import count
from tests.compaction.nets import same
from tests.compaction.oracle import live_macs
from tests.compaction.tiny import OTHER, X


def shrinks(
    model: nn.Module, example: Tensor = X, others: Iterable[Tensor] = (OTHER,), most: float = 1.05
) -> "ds.Compacted[Any]":
    """The compact model, if its layers do at most `most` times the live MACs and it agrees on all inputs."""
    small = ds.compact(model, example)
    oracle = live_macs(model, lambda seed: (torch.randn(example.shape, dtype=example.dtype),)).by_module
    done = count(small.model, Example.of(example)).macs_by_module
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    live, after = sum(oracle[name] for name in names), sum(done.get(name, 0) for name in names)
    assert after <= most * live, f"{after} MACs, {live} are live\n{small}"
    for x in (torch.randn_like(example), *others):
        assert same(model, small.model, x), f"not the same for {tuple(x.shape)}"
    assert not small.fallbacks, small.fallbacks
    return small
