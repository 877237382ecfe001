import numpy as np
import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse import MatrixGate, SignedGate, SimplexGate, SparsityError
from diffsparse.budget.entries import GateEntries


def entries() -> GateEntries:
    torch.manual_seed(0)
    gates = {"a": SignedGate(6), "b": SimplexGate((2, 4)), "c": SignedGate(1)}
    for gate in gates.values():
        gate.alpha.data.add_(0.3 * torch.randn_like(gate.alpha))
    return GateEntries(gates)


def test_entries_of_all_groups_lie_side_by_side() -> None:
    found = entries()
    assert found.count == 15
    assert found.sizes.tolist() == [6, 4, 4, 1]
    assert found.group.tolist() == [0] * 6 + [1] * 4 + [2] * 4 + [3]
    assert found.immortal.tolist() == [False] * 14 + [True]
    assert np.flatnonzero(found.one_per_group()).tolist() == [0, 6, 10, 14]


def test_an_entry_lives_if_its_margin_is_positive() -> None:
    found = entries()
    for by in np.linspace(0, 3, 13):
        found.shift(np.full(4, by / 13))
        margins = found.margins()
        assert margins[-1] == np.inf
        assert ((margins > 0) == found.alive()).all()
    assert not found.alive()[:14].all()


def test_margins_say_at_which_shift_an_entry_dies() -> None:
    found = entries()
    margins = found.margins()
    order = np.argsort(margins[:6])
    found.shift(np.array([(margins[order[1]] + margins[order[2]]) / 2, 0, 0, 0]))
    assert np.flatnonzero(~found.alive()[:6]).tolist() == sorted(order[:2].tolist())


def test_equal_shares_can_be_separated() -> None:
    found = GateEntries({"a": SignedGate(5), "b": SimplexGate(5)})
    before = found.margins()
    assert np.ptp(before[:5]) < 1e-6
    found.separate(1e-5)
    assert (np.diff(found.margins()[:5]) > 5e-6).all()
    assert np.abs(found.margins() - before).max() < 1e-4


def test_patterns_leave_two_thirds_of_each_group_and_repeat() -> None:
    first, second = entries().random_patterns(5), entries().random_patterns(5)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert not (first[0] == first[1]).all()
    assert all(np.bincount(entries().group, weights=pattern).tolist() == [4, 3, 3, 1] for pattern in first)


def test_imposed_entries_live_and_the_others_are_zero() -> None:
    model = ds.sparsify(nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7)), start=0.5)
    found = GateEntries({"1.gate": model[1].gate})
    alive = np.array([True, False, True, False, False, True, False])
    found.impose(model, alive)
    assert ((model[1].gate() != 0).numpy() == alive).all()
    found.impose(model, np.zeros(7, bool))
    assert not found.alive().any()


def test_a_gate_with_two_thresholds_is_refused() -> None:
    with pytest.raises(SparsityError, match=r"'graph' is a MatrixGate\. Choose the others with only="):
        GateEntries({"graph": MatrixGate(4)})


def test_a_gate_that_is_not_finite_is_named() -> None:
    gate = SignedGate(4)
    gate.alpha.data[1] = float("nan")
    with pytest.raises(SparsityError, match="alpha of gate 'bad' must be finite"):
        GateEntries({"bad": gate}).margins()
