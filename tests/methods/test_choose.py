import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import diffsparse as ds
from diffsparse.methods import Gated, Method, Proximal, Scratch, Slimming, Sparsifying, TorchPruning, choose_method


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"strength": 0.2, "start": 0.3, "rgf": 0.1}, Gated(strength=0.2, start=0.3, rgf=0.1)),
        ({"strength": 1e-3, "norm": "l21", "group_size": 4}, Gated(strength=1e-3, norm=ds.GroupL21(size=4))),
        ({"strength": 1e-3, "norm": "l12"}, Gated(strength=1e-3, norm=ds.ExclusiveL12())),
        (
            {"method": "slimming", "strength": 0.2, "target": 0.4, "start": 0.3},
            Slimming(strength=0.2, target=0.4, start=0.3),
        ),
        ({"method": "slimming", "strength": 1e-3, "macs": 0.4}, Slimming(strength=1e-3, macs=0.4)),
        ({"method": "slimming", "strength": 1e-3}, Slimming(strength=1e-3, macs=0.5)),
        ({}, Gated(macs=0.5, start=1.0)),
        ({"params": 0.25, "bytes": 1000, "due": 0.5}, Gated(params=0.25, bytes=1000, due=0.5, start=1.0)),
        ({"method": "proximal-l1", "strength": 0.2}, Proximal(strength=0.2)),
        ({"method": "proximal-l21", "strength": 1e-3}, Proximal(strength=1e-3, norm=ds.GroupL21(size=12))),
        (
            {"method": "proximal-l12", "strength": 1e-3, "target": 0.5},
            Proximal(strength=1e-3, norm=ds.ExclusiveL12(), target=0.5),
        ),
        ({"method": "torch-pruning", "macs": 0.4}, TorchPruning(macs=0.4)),
        ({"method": "torch-pruning"}, TorchPruning(macs=0.5)),
        ({"method": "scratch", "params": 0.4}, Scratch(params=0.4)),
        ({"method": "scratch", "like": Path("x")}, Scratch(like=Path("x"))),
    ],
)
def test_each_method_gets_its_options(settings: dict[str, Any], expected: Method) -> None:
    chosen = choose_method(Sparsifying(**settings), nn.Linear(1, 1))
    assert type(chosen) is type(expected)
    # norms are compared by what they print
    assert repr(chosen) == repr(expected)


def test_plain_training_is_the_base_of_all() -> None:
    assert type(choose_method(Sparsifying(method="plain"), nn.Linear(1, 1))) is Method


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "slimming", "target": 0.5, "norm": "l21"},
            "norm=l21 has no meaning for method slimming, which takes bytes, delay_epochs, ",
        ),
        ({"method": "proximal-l1", "norm": "l12"}, "norm=l12 has no meaning for method proximal-l1"),
        ({"method": "plain", "norm": "l12"}, "norm=l12 has no meaning for method plain, which takes no such options"),
        ({"method": "proximal-l1", "rgf": 0.1}, "rgf=0.1 has no meaning for method proximal-l1"),
        (
            {"method": "scratch", "like": Path("x"), "ramp_epochs": 3.0},
            "ramp_epochs=3.0 has no meaning for method scratch, which takes bytes, like, macs, params",
        ),
        ({"method": "plain", "strength": 0.1}, "strength=0.1 has no meaning for method plain"),
        ({"method": "slimming", "macs": 0.5, "target": 0.5}, "macs=0.5 and target=0.5 both say how small to become"),
        ({"method": "magic"}, "got 'magic'"),
    ],
)
def test_options_that_mean_nothing_to_a_method(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ds.SparsityError, match=re.escape(message)):
        choose_method(Sparsifying(**settings), nn.Linear(1, 1))
