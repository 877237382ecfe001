import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.methods import Method, Sparsifying, choose_method
from diffsparse.models import create
from diffsparse.wiring.feature import (
    Wired,
    WiredGates,
    WiredLargest,
    WiredProximal,
    WiredRandom,
    wired_stages,
)
from diffsparse.wiring.mobilenet import WiredMobileNet
from diffsparse.wiring.rules import FixedRandom, Plain, TopK
from tests.methods.tiny import EXAMPLE, agree, images, train

METHODS: dict[str, Method] = {
    "plain": Wired(),
    "ds": WiredGates(strength=3e-3),
    "ds with rgf": WiredGates(strength=3e-3, rgf=0.1),
    "proximal l1": WiredProximal(strength=0.03),
    "proximal l12": WiredProximal(strength=0.03, norm=ds.ExclusiveL12()),
    "dnw": WiredLargest(target=0.8),
    "dnw no update": WiredLargest(target=0.8, update=False),
    "random": WiredRandom(target=0.8),
}


def net(seed: int = 0) -> nn.Module:
    """Stages of 2, 4, 8 and 16 channels: 2 x 4, then 8 x (4 + 12), then 16 x (8 + 24) usable edges."""
    torch.manual_seed(seed)
    return WiredMobileNet(4, in_channels=1, width=0.0625, small=True)


@torch.no_grad()
def matrices(model: nn.Module) -> list[list[Tensor]]:
    return [[matrix.clone() for matrix in stage.edges()] for stage in wired_stages(model)]


def zeros_a_stage(model: nn.Module) -> list[tuple[int, int]]:
    """Zero and usable edges, counted one by one."""
    entries = [[value for matrix in stage for value in matrix.flatten().tolist()] for stage in matrices(model)]
    return [(sum(value == 0 for value in values), len(values)) for values in entries]


@torch.no_grad()
def loss(model: nn.Module) -> float:
    """By the statistics of the batch; running ones lag behind in so short a training."""
    pictures, labels = images()
    return float(F.cross_entropy(copy.deepcopy(model).train()(pictures), labels))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_every_method_learns_and_compacts(method: Method) -> None:
    model = method.prepare(net())
    before = loss(model)
    trained = train(model, method, steps=20)
    assert loss(trained) < 0.7 * before
    found = zeros_a_stage(trained)
    counted = method.zeros(trained)
    assert (counted.zero, counted.total) == (sum(z for z, _ in found), sum(n for _, n in found))
    small = method.compacted(trained, net(), EXAMPLE)
    assert agree(small.model, trained)


@pytest.mark.parametrize("method", [METHODS["dnw"], METHODS["dnw no update"], METHODS["random"]], ids=repr)
def test_a_share_of_the_edges_of_every_stage_is_zero_throughout(method: Method) -> None:
    model = method.prepare(net())
    # 8 x 0.2 = 1.6, 128 x 0.2 = 25.6 and 512 x 0.2 = 102.4 edges stay
    expected = [(6, 8), (102, 128), (410, 512)]
    assert zeros_a_stage(model) == expected
    assert zeros_a_stage(train(model, method, steps=3)) == expected


def live(model: nn.Module) -> list[Tensor]:
    return [matrix != 0 for stage in matrices(model) for matrix in stage]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_only_hallucinated_edges_come_into_the_graph() -> None:
    for name, changes in (("dnw", True), ("random", False)):
        model = METHODS[name].prepare(net())
        before = live(model)
        assert same(live(train(model, METHODS[name], steps=10)), before) is not changes


def test_gates_are_those_of_the_method() -> None:
    for rgf in (None, 0.1):
        model = WiredGates(strength=1.0, rgf=rgf).prepare(net())
        gates = [gate for gate in model.modules() if isinstance(gate, ds.SignedGate)]
        assert [gate.rgf for gate in gates] == 5 * [rgf]
    regulariser = WiredGates(strength=2.0).regulariser(model, torch.optim.SGD(model.parameters(), lr=0.1))
    total = sum(matrix.abs().sum() for stage in matrices(model) for matrix in stage)
    term = regulariser()
    assert term is not None
    torch.testing.assert_close(term.detach(), 2.0 * total)


def one_step(method: WiredProximal) -> tuple[list[Tensor], list[Tensor]]:
    """Edges before and after a step of the optimiser without gradients, lambda set to 0.5 and a rate of 0.1."""
    model = method.prepare(net())
    before = [matrix for stage in matrices(model) for matrix in stage]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    regulariser = method.regulariser(model, optimizer)
    assert regulariser is not None
    assert regulariser() is None
    regulariser.strength = 0.5
    optimizer.step()
    return before, [matrix for stage in matrices(model) for matrix in stage]


@pytest.mark.parametrize(
    ("norm", "threshold"),
    [
        (ds.L1(), lambda row: 0.05),
        (ds.ExclusiveL12(), lambda row: 0.05 * sum(abs(value) for value in row)),
    ],
    ids=["l1", "l12"],
)
def test_a_proximal_step_shrinks_the_edges_into_each_node(
    norm: ds.L1 | ds.ExclusiveL12, threshold: Callable[[list[float]], float]
) -> None:
    before, after = one_step(WiredProximal(strength=1.0, norm=norm))
    for old, new in zip(before, after, strict=True):
        for row, shrunk in zip(old.tolist(), new.tolist(), strict=True):
            level = threshold(row)
            expected = [max(abs(value) - level, 0.0) * (1 if value > 0 else -1) for value in row]
            assert shrunk == pytest.approx(expected, abs=1e-6)


def test_edges_are_drawn_from_the_seed() -> None:
    first, second, other = (METHODS["random"].prepare(net(seed)) for seed in (0, 0, 1))
    assert same(live(first), live(second))
    assert not same(live(first), live(other))


def test_an_ordinary_network_has_no_edges() -> None:
    ordinary = create("preresnet20-0.25")
    assert wired_stages(ordinary) == []
    with pytest.raises(ds.SparsityError, match="WiredLargest is about edges, and PreResNet has no WiredStage"):
        WiredLargest(target=0.5).prepare(ordinary)


@pytest.mark.parametrize("method", [WiredLargest, WiredRandom])
def test_targets_that_make_no_sense(method: type[WiredLargest] | type[WiredRandom]) -> None:
    with pytest.raises(ds.SparsityError, match=r"target must be a finite number .*, got 1\.5"):
        method(target=1.5)
    with pytest.raises(ds.SparsityError, match=r"zeros=0\.99 leaves none of the 8 edges of a stage"):
        method(target=0.99).prepare(net())


def test_a_density_gives_each_stage_the_edges_of_a_narrow_mobilenet() -> None:
    # of the paper's five stages at d = 0.225, from the sizes of MobileNetV1: d^2 (in * out + (groups - 1) * out^2)
    expected = [104, 1245, 4977, 72991, 79627]
    net = WiredMobileNet(edges=Plain())
    for name in ("dnw", "dnw-no-update", "random"):
        method = choose_method(Sparsifying(method=name, density=0.225), net)
        assert isinstance(method, WiredLargest | WiredRandom)
        rule = method.rule()
        assert isinstance(rule, TopK | FixedRandom)
        assert [rule.kept_edges(stage.shape) for stage in wired_stages(net)] == expected


def test_either_a_target_or_a_density() -> None:
    for options in ({}, {"target": 0.5, "density": 0.5}):
        with pytest.raises(ds.SparsityError, match=r"random needs a target, .* or a density"):
            choose_method(Sparsifying(method="random", **options), WiredMobileNet(width=0.125))
