import math

import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.wiring import Differentiable, FixedRandom, Proximal, StageShape, TopK

# inputs, outputs, groups; entries, usable edges, k at 0.225, fan-ins
TABLE = [
    ((32, 64, 1), 2_048, 2_048, 103.7, (32,)),
    ((64, 128, 2), 49_152, 32_768, 1_244.2, (64, 192)),
    ((128, 256, 2), 196_608, 131_072, 4_976.6, (128, 384)),
    ((256, 512, 6), 8_650_752, 4_718_592, 72_990.7, (256, 768, 1280, 1792, 2304, 2816)),
    ((512, 1024, 2), 3_145_728, 2_097_152, 79_626.2, (512, 1536)),
]


def shape_of(numbers: tuple[int, int, int]) -> StageShape:
    return StageShape(inputs=numbers[0], outputs=numbers[1], groups=numbers[2])


@pytest.mark.parametrize(("numbers", "entries", "usable", "count", "fan_ins"), TABLE)
def test_counts_of_the_published_stages(numbers, entries, usable, count, fan_ins) -> None:
    shape = shape_of(numbers)
    # one matrix from all nodes with outgoing to all nodes with incoming edges, usable or not
    assert shape.outputs * shape.groups * sum(shape.sources) == entries
    assert (shape.usable_edges, shape.fan_ins) == (usable, fan_ins)
    assert round(shape.edge_count(0.225), 1) == count
    # as the public code counts: the size less the whole part of the rate of it, over usable entries
    rate = 1 - shape.edge_count(0.225) / shape.usable_edges
    assert TopK(density=0.225).kept_edges(shape) == shape.usable_edges - int(rate * shape.usable_edges)


def test_usable_edges_by_enumeration() -> None:
    shape = StageShape(inputs=2, outputs=3, groups=4)
    group_of = [0] * 2 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert shape.usable_edges == sum(a < b for a in group_of for b in group_of)
    assert sum(shape.sources) == 2 + 3 * 3


def test_all_edges_of_mobilenet_are_usable() -> None:
    for numbers, *_ in TABLE:
        shape = shape_of(numbers)
        assert TopK(density=1.0).kept_edges(shape) == shape.edge_count(1.0) <= shape.usable_edges


def test_a_round_number_of_edges_is_not_rounded_up() -> None:
    # 0.1 ** 2 * 100 is above 1 in binary
    assert 0.1**2 * 100 > 1
    assert TopK(density=0.1).kept_edges(StageShape(inputs=10, outputs=10, groups=1)) == 1


@pytest.mark.parametrize("density", [0, -0.1, 1.01, math.nan, True, "0.5"])
def test_density_is_a_fraction(density) -> None:
    with pytest.raises(SparsityError, match="density"):
        StageShape(inputs=4, outputs=4, groups=1).edge_count(density)
    for rule in (TopK, FixedRandom):
        with pytest.raises(SparsityError, match="density"):
            rule(density=density)


@pytest.mark.parametrize("wrong", [{"inputs": 0}, {"outputs": -1}, {"groups": 0}, {"groups": 1.5}])
def test_a_stage_has_nodes_and_groups(wrong) -> None:
    with pytest.raises(SparsityError, match=next(iter(wrong))):
        StageShape(**{"inputs": 4, "outputs": 4, "groups": 2, **wrong})


RULES = [Differentiable(), TopK(density=0.5), Proximal(strength=0.0), FixedRandom(density=0.5)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_rule_starts_from_the_same_draw(rule) -> None:
    shape = StageShape(inputs=6, outputs=50, groups=3)
    torch.manual_seed(3)
    bound = 1 / math.sqrt(6 + 2 * 50)
    expected = [torch.empty(50, fan_in).uniform_(-bound, bound) for fan_in in (6, 56, 106)]
    torch.manual_seed(3)
    for weight, wanted in zip(rule.edges(shape).weights(), expected, strict=True):
        assert torch.equal(weight, wanted)
        # uniform over the whole range
        assert weight.abs().max() > 0.95 * bound
        assert abs(weight.std().item() - bound / math.sqrt(3)) < 0.1 * bound


def test_no_edge_starts_at_exactly_zero(monkeypatch) -> None:
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self, low, high: self.zero_())
    (gate,) = Differentiable().edges(StageShape(inputs=4, outputs=2, groups=1)).gates
    assert (gate.alpha > 0).all()
    assert gate.alpha.max() < 1e-6
