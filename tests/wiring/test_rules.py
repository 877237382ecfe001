"""What each rule gives the forward pass, and where it lets the gradient go."""

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import diffsparse as ds
from diffsparse.errors import SparsityError
from diffsparse.wiring import Differentiable, FixedRandom, Plain, Proximal, StageShape, TopK, WiredStage

SHAPE = StageShape(inputs=3, outputs=4, groups=2)
RULES = [
    Differentiable(),
    Differentiable(rgf=None),
    Plain(),
    TopK(density=0.7),
    TopK(density=0.7, update=False),
    Proximal(strength=0.05),
    Proximal(norm=ds.ExclusiveL12(), strength=0.05),
    FixedRandom(density=0.7),
]


def test_gated_edges_by_a_loop_over_nodes() -> None:
    torch.manual_seed(0)
    edges = Differentiable().edges(SHAPE)
    for gate in edges.gates:
        gate.beta.data.uniform_(-3.0, -1.0)
    for gate, matrix in zip(edges.gates, edges(), strict=True):
        assert tuple(gate.beta.shape) == (4,)
        for node in range(4):
            row = gate.alpha[node].tolist()
            threshold = sum(map(abs, row)) / (1 + math.exp(-gate.beta[node].item()))
            expected = [math.copysign(max(abs(a) - threshold, 0.0), a) for a in row]
            assert torch.allclose(matrix[node], torch.tensor(expected), atol=1e-7)
        assert 0 < int((matrix == 0).sum()) < matrix.numel()


def test_one_threshold_per_node_at_its_fan_in() -> None:
    betas = [gate.beta.tolist() for gate in Differentiable().edges(SHAPE).gates]
    assert betas == [pytest.approx([-math.log(n * n + n - 1)] * 4) for n in (3, 7)]


@pytest.mark.parametrize("rgf", [0.1, None])
def test_gradient_of_an_edge(rgf) -> None:
    """Straight through for a live edge; 0.1 exp(z) of it for a zeroed one with rectified flow, nothing without; and
    for both the share in the threshold, which every edge of the node moves."""
    torch.manual_seed(1)
    stage = WiredStage(3, 4, groups=2, edges=Differentiable(rgf=rgf)).double()
    for gate in stage.edges.gates:
        gate.beta.data.fill_(-1.5)
    x, target = torch.randn(5, 3, 6, 6).double(), torch.randn(5, 4, 6, 6).double()
    F.mse_loss(stage(x), target).backward()
    free = [matrix.detach().requires_grad_() for matrix in stage.edges()]
    plain = copy.deepcopy(stage)
    plain.edges.forward = lambda: tuple(free)
    F.mse_loss(plain(x), target).backward()
    zeroed = 0
    for gate, matrix in zip(stage.edges.gates, free, strict=True):
        alpha, share = gate.alpha.detach(), torch.sigmoid(gate.beta.detach())[:, None]
        z = alpha.abs() - share * alpha.abs().sum(1, keepdim=True)
        factor = torch.where(z > 0, 1.0, 0.0 if rgf is None else rgf * z.exp())
        straight = factor * matrix.grad
        through_norm = share * alpha.sign() * (alpha.sign() * straight).sum(1, keepdim=True)
        assert torch.allclose(gate.alpha.grad, straight - through_norm, atol=1e-12)
        assert torch.equal(matrix == 0, z <= 0)
        assert (matrix.grad[z <= 0] != 0).any()
        zeroed += int((z <= 0).sum())
    assert zeroed > 5


def came_back(rgf: float | None, seed: int) -> tuple[int, int]:
    """Edges that the task needs but that start dead, and how many of them training brings back."""
    torch.manual_seed(seed)
    stage = WiredStage(8, 12, edges=Differentiable(rgf=rgf)).eval()
    gate, nodes = stage.edges.gates[0], stage.nodes.requires_grad_(False)
    needed = torch.randn(12, 8).sign() * (torch.rand(12, 8) < 0.5)
    lost = (needed != 0) & (torch.rand(12, 8) < 0.5)
    gate.alpha.data.copy_(torch.where(lost | (needed == 0), 0.02 * torch.randn(12, 8), needed))
    gate.beta.data.fill_(-3.9)
    x = torch.randn(32, 8, 4, 4)
    target = F.conv2d(nodes[0](x), needed[:, :, None, None])
    dead = lost & (gate() == 0)
    optimizer = torch.optim.SGD(stage.edges.parameters(), lr=3.0)
    for _ in range(100):
        optimizer.zero_grad()
        F.mse_loss(stage(x), target).backward()
        optimizer.step()
    return int(dead.sum()), int((dead & (gate() != 0)).sum())


def test_edges_come_back_with_rectified_flow_and_hardly_ever_without() -> None:
    dead, back = map(sum, zip(*(came_back(0.1, seed) for seed in (0, 1)), strict=True))
    assert dead > 25
    assert back > 0.9 * dead
    dead, back = map(sum, zip(*(came_back(None, seed) for seed in (0, 1)), strict=True))
    assert dead > 25
    assert back < 0.1 * dead


@pytest.mark.parametrize("update", [True, False])
def test_the_largest_edges_of_the_stage_by_sorting(update) -> None:
    torch.manual_seed(2)
    edges = TopK(density=0.6, update=update).edges(SHAPE)
    kept = math.ceil(0.36 * (3 * 4 + 4 * 4))
    weights = torch.cat([w.detach().flatten() for w in edges.weights()])
    there = set(sorted(range(len(weights)), key=lambda i: -abs(weights[i].item()))[:kept])
    mask = torch.tensor([i in there for i in range(len(weights))])
    given = edges()
    assert torch.equal(torch.cat([m.flatten() for m in given]), weights * mask)
    upstream = [torch.randn_like(m) for m in given]
    torch.autograd.backward(given, upstream)
    wanted = torch.cat([g.flatten() for g in upstream])
    got = torch.cat([w.grad.flatten() for w in edges.weights()])
    assert torch.equal(got, wanted if update else wanted * mask)


def test_equal_magnitudes_do_not_add_edges() -> None:
    edges = TopK(density=0.5).edges(SHAPE)
    for weight in edges.weights():
        weight.data.fill_(0.25)
    assert sum(int((m != 0).sum()) for m in edges()) == edges.kept == 7


def test_a_hallucinated_edge_replaces_a_real_one() -> None:
    edges = TopK(density=0.5).edges(SHAPE)
    first, _ = (m.detach().clone() for m in edges())
    dead = (first == 0).nonzero()[0].tolist()
    edges.weights()[0].data[tuple(dead)] = -9.0
    now, _ = edges()
    assert now[tuple(dead)] == -9
    assert sum(int((m != 0).sum()) for m in edges()) == edges.kept


def test_a_file_knows_how_many_edges_it_keeps(tmp_path: Path) -> None:
    stage = WiredStage(4, 8, groups=2, edges=TopK(density=0.5)).eval()
    ds.save(stage, tmp_path / "stage.safetensors")
    again = ds.load(tmp_path / "stage.safetensors", WiredStage(4, 8, groups=2, edges=TopK(density=0.9)).eval())
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(again(x), stage(x))
    with pytest.raises(SparsityError, match="edge_count"):
        ds.load(tmp_path / "stage.safetensors", WiredStage(4, 8, groups=2, edges=Proximal(strength=0.1)))


def test_random_edges_stay_as_drawn() -> None:
    torch.manual_seed(0)
    stage = WiredStage(3, 4, groups=2, edges=FixedRandom(density=0.5))
    masks = [m != 0 for m in stage.edges()]
    assert sum(int(m.sum()) for m in masks) == 7
    other = WiredStage(3, 4, groups=2, edges=FixedRandom(density=0.5))
    assert any(not torch.equal(m, n != 0) for m, n in zip(masks, other.edges(), strict=True))
    other.load_state_dict(stage.state_dict())
    assert all(torch.equal(m, n != 0) for m, n in zip(masks, other.edges(), strict=True))
    train(stage, FixedRandom(density=0.5))
    assert all(torch.equal(m, n != 0) for m, n in zip(masks, stage.edges(), strict=True))


@pytest.mark.parametrize("rule", [TopK, FixedRandom])
@pytest.mark.parametrize(("zeros", "kept"), [(0.0, 40), (0.5, 20), (0.77, 9), (0.99, None), (1.0, None)])
def test_a_share_of_zero_edges(rule, zeros, kept) -> None:
    shape = StageShape(inputs=3, outputs=4, groups=2)
    assert shape.usable_edges == 40
    if kept is None:
        with pytest.raises(SparsityError, match=f"zeros={zeros:g} leaves none of the 40 edges of a stage"):
            rule(zeros=zeros).edges(shape)
    else:
        assert rule(zeros=zeros).kept_edges(shape) == kept
        assert sum(int((m != 0).sum()) for m in rule(zeros=zeros).edges(shape)()) == kept


@pytest.mark.parametrize("rule", [TopK, FixedRandom])
def test_the_number_of_edges_is_given_once(rule) -> None:
    for given in ({}, {"density": 0.5, "zeros": 0.5}):
        with pytest.raises(SparsityError, match=f"{rule.__name__} needs either density= or zeros="):
            rule(**given)
    for zeros in (-0.1, 1.5, math.nan, True, "0.5"):
        with pytest.raises(SparsityError, match="zeros must be a finite number"):
            rule(zeros=zeros)


@pytest.mark.parametrize("norm", [ds.L1(), ds.ExclusiveL12()])
def test_proximal_step_by_hand(norm) -> None:
    rule = Proximal(norm=norm, strength=0.5)
    stage = WiredStage(1, 2, groups=2, edges=rule)
    start = torch.tensor([[0.2, -0.05, 0.1], [0.01, 0.4, -0.02]])
    stage.edges.weights()[1].data.copy_(start)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.2)
    hook = rule.attach(stage, optimizer)
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    per_node = {"L1()": [0.1, 0.1], "ExclusiveL12()": [0.1 * 0.35, 0.1 * 0.43]}[repr(norm)]
    expected = [
        [math.copysign(max(abs(w) - cut, 0.0), w) for w in row]
        for row, cut in zip(start.tolist(), per_node, strict=True)
    ]
    assert torch.allclose(stage.edges()[1], torch.tensor(expected))
    hook.remove()


def test_proximal_wants_its_own_kind_of_edges() -> None:
    rule = Proximal(strength=0.1)
    for other in (Differentiable(), TopK(density=0.9), FixedRandom(density=0.9)):
        stage = WiredStage(2, 2, edges=other)
        with pytest.raises(SparsityError, match="no stage with Proximal edges"):
            rule.attach(stage, torch.optim.SGD(stage.parameters(), lr=0.1))
    with pytest.raises(SparsityError, match=r"L1\(\) or ExclusiveL12\(\), got Lp"):
        Proximal(norm=ds.Lp(), strength=0.1)
    with pytest.raises(SparsityError, match="strength"):
        Proximal(strength=-1.0)


def train(stage: WiredStage, rule: object, steps: int = 25) -> list[float]:
    """An ordinary loop: parameters, a penalty for gates, a hook for proximal steps."""
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1, momentum=0.9)
    penalty = ds.Penalty(stage, strength=1e-3) if isinstance(rule, Differentiable) else None
    hook = rule.attach(stage, optimizer) if isinstance(rule, Proximal) else None
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(16, 3, 4, 4, generator=generator), torch.randn(16, 4, 4, 4, generator=generator)
    losses = []
    for _ in range(steps):
        loss = F.mse_loss(stage(x), target)
        losses.append(loss.item())
        optimizer.zero_grad()
        (loss if penalty is None else loss + penalty()).backward()
        optimizer.step()
    if hook is not None:
        hook.remove()
    return losses


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_rule_trains_in_an_ordinary_loop(rule) -> None:
    torch.manual_seed(0)
    stage = WiredStage(3, 4, groups=2, edges=rule)
    losses = train(stage, rule)
    assert losses[-1] < losses[0] - 0.01
    clone = copy.deepcopy(stage)
    fresh = WiredStage(3, 4, groups=2, edges=rule)
    fresh.load_state_dict(stage.state_dict())
    x = torch.randn(2, 3, 4, 4)
    for other in (clone, fresh):
        assert torch.equal(other.eval()(x), stage.eval()(x))


@pytest.mark.parametrize("wrong", ["topk", 0.5, Differentiable])
def test_edges_is_a_rule(wrong) -> None:
    with pytest.raises(SparsityError, match="edges must be a rule"):
        WiredStage(2, 2, edges=wrong)
