"""What is gone after compaction, against gates that were set by hand."""

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction.plan import Plan
from diffsparse.models import create
from diffsparse.nn import SparseBatchNorm2d
from diffsparse.recipes.columns import COLUMNS, OWN, PAPER
from diffsparse.recipes.units import removed_units, zero_units


def gated(name: str) -> tuple[nn.Module, dict[str, SparseBatchNorm2d]]:
    torch.manual_seed(0)
    model = ds.sparsify(create(name)).eval()
    return model, {key: module for key, module in model.named_modules() if isinstance(module, SparseBatchNorm2d)}


def set_zeros(norm: SparseBatchNorm2d, dead: list[int]) -> None:
    values = torch.rand(norm.num_features) + 0.5
    values[dead] = 0
    norm.gate.set_values(values)


def test_groups_of_a_densenet_are_counted_as_by_hand() -> None:
    model, norms = gated("densenet13")
    random = torch.Generator().manual_seed(1)
    expected = total = 0
    for norm in norms.values():
        dead_groups = [g for g in range(norm.num_features // 12) if torch.rand((), generator=random) < 0.3]
        alone = [c for c in range(norm.num_features) if torch.rand((), generator=random) < 0.3 and c % 12 != 0]
        set_zeros(norm, sorted({*alone, *(12 * g + i for g in dead_groups for i in range(12))}))
        zeros = norm.gate().detach().view(-1, 12) == 0
        expected, total = expected + int(zeros.all(1).sum()), total + len(zeros)
    found = zero_units(model, group=12)
    assert found["groups"] == {"gone": expected, "total": total}
    sparsity = ds.sparsity(model)
    assert found["channels"] == {"gone": sparsity.channels.zero, "total": sparsity.channels.total}
    assert found["norms"] == {"gone": 0, "total": len(norms)}
    assert zero_units(model, group=7)["groups"] is None
    # what nobody reads is gone as well
    plan = ds.compact(model, torch.randn(1, 3, 8, 8)).plan
    gone = removed_units(create("densenet13"), plan, group=12)
    assert gone["groups"] is not None
    assert gone["groups"]["gone"] >= expected
    # the same after a JSON round trip, which is what a run leaves
    assert removed_units(create("densenet13"), Plan.from_json(plan.to_json()), group=12) == gone


def test_a_dead_block_takes_all_its_layers_with_it() -> None:
    model, norms = gated("preresnet20")
    for norm in norms.values():
        set_zeros(norm, [0])
    set_zeros(norms["stages.1.1.bn2"], list(range(32)))
    found = removed_units(create("preresnet20"), ds.compact(model, torch.randn(1, 3, 32, 32)).plan, group=12)
    # both batch norms and both convolutions of the block are gone, though only the second batch norm is zero
    assert found["norms"] == {"gone": 2, "total": 19}
    assert found["layers"] == {"gone": 2, "total": 22}
    assert found["groups"] is None
    assert zero_units(model, group=12)["norms"] == {"gone": 1, "total": 19}


FACTS = {
    "figures": {"accuracy": 0.9},
    "zero": {"channels": {"gone": 1, "total": 4}, "norms": {"gone": 1, "total": 4}, "groups": None},
    "cost": {"plain": {"macs": 200, "params": 50}, "compact": {"macs": 50, "params": 20}},
    "removed": {
        "channels": {"gone": 3, "total": 4},
        "norms": {"gone": 2, "total": 4},
        "layers": {"gone": 1, "total": 2},
        "groups": None,
    },
    "wiring": {
        "one_hop": {"mult_adds": 30, "params": 7, "batch_norm_params": 5},
        "recursive": {"mult_adds": 20, "params": 6, "batch_norm_params": 4},
    },
    "graph": {"nonzeros": 30, "entries": 100, "lr1": 0.5, "lr2": 0.75},
}


@pytest.mark.parametrize(
    ("column", "paper", "own"),
    [
        ("error", 10.0, 10.0),
        ("channels", 25.0, 75.0),
        ("layers", 25.0, 50.0),
        ("groups", None, None),
        ("flops", 25.0, 25.0),
        ("params", 40.0, 40.0),
        ("mult_adds", 30.0, 20.0),
        ("weights", 7.0, 10.0),
        ("density", 30.0, 30.0),
        ("lr2", 75.0, 75.0),
    ],
)
def test_conventions(column: str, paper: float | None, own: float | None) -> None:
    for convention, expected in ((PAPER, paper), (OWN, own)):
        found = COLUMNS[column].value(FACTS, convention)
        assert found == (None if expected is None else pytest.approx(expected))
    assert (PAPER.operations, PAPER.flops_per_mac, OWN.operations) == ("FLOPs", 2, "MACs")


def test_layers_of_the_paper_are_163_and_49() -> None:
    for name, layers in (("preresnet164", 163), ("resnet50-preact", 49)):
        empty = Plan(tensors={}, layers={})
        assert removed_units(create(name), empty, group=12)["norms"] == {"gone": 0, "total": layers}
