import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import diffsparse as ds
from diffsparse.errors import SparsityError
from diffsparse.wiring import Proximal, WiredStage
from tests.wiring.nets import drop, matrices, shifted


def node_by_node(stage: WiredStage, x: Tensor) -> Tensor:
    """The sum over edges written out: every node by itself, in the order of the groups."""
    shape, weights = stage.shape, [m.detach() for m in stage.edges()]
    received = [x[:, i] for i in range(shape.inputs)]
    states: list[Tensor] = []
    for group, nodes in enumerate(stage.nodes):
        norm, conv = nodes.norm, nodes.filter
        first = 0 if group == 0 else shape.inputs + (group - 1) * shape.outputs
        for i in range(shape.sources[group]):
            y = (received[first + i] - norm.running_mean[i]) / (norm.running_var[i] + norm.eps).sqrt()
            y = (y * norm.weight[i] + norm.bias[i]).clamp(min=0)
            states.append(F.conv2d(y[:, None], conv.weight[i : i + 1], stride=conv.stride, padding=1)[:, 0])
        for v in range(shape.outputs):
            received.append(sum(weights[group][v, u] * states[u] for u in range(len(states))))
    return torch.stack(received[-shape.outputs :], 1)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_forward_is_the_sum_over_edges(groups, stride) -> None:
    torch.manual_seed(groups)
    stage = shifted(WiredStage(3, 4, stride, groups, edges=Proximal(strength=0.0))).double()
    drop(0.5)(matrices(stage))
    x = torch.randn(2, 3, 5, 7).double()
    expected = node_by_node(stage, x)
    assert expected.shape == (2, 4, -(-5 // stride), -(-7 // stride))
    assert torch.allclose(stage(x), expected, atol=1e-12)
    assert torch.allclose(stage.materialise()(x), expected, atol=1e-12)


def test_no_node_has_an_operation_it_does_not_need() -> None:
    stage = WiredStage(3, 5, 2, 3)
    assert [(n.filter.in_channels, n.filter.stride, n.filter.bias) for n in stage.nodes] == [
        (3, (2, 2), None),
        (5, (1, 1), None),
        (5, (1, 1), None),
    ]
    assert sum(p.numel() for p in stage.nodes.parameters()) == (9 + 2) * (3 + 5 + 5)
    assert sum(p.numel() for p in stage.edges.parameters()) == stage.shape.usable_edges + 3 * 5


def test_penalty_and_sparsity_see_the_edges() -> None:
    torch.manual_seed(0)
    stage = WiredStage(3, 4, groups=2)
    for gate in stage.edges.gates:
        gate.beta.data.fill_(-1.5)
    total = sum(m.detach().abs().sum().item() for m in stage.edges())
    assert ds.Penalty(stage, strength=0.5)().item() == pytest.approx(0.5 * total)
    rows = sum(0.5 * m.detach().abs().sum(1).square().sum().item() for m in stage.edges())
    assert ds.Penalty(stage, ds.ExclusiveL12(), strength=1.0)().item() == pytest.approx(rows)
    count = ds.sparsity(stage).channels
    assert (count.zero, count.total) == (sum(int((m == 0).sum()) for m in stage.edges()), stage.shape.usable_edges)
    assert 0 < count.zero < count.total


def test_half_precision_keeps_gates_in_float32() -> None:
    stage = shifted(WiredStage(3, 4, groups=2))
    x = torch.randn(2, 3, 6, 6)
    exact = stage(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(stage(x).float(), exact, atol=0.05)
    half = stage.bfloat16()
    assert half.edges.gates[0].alpha.dtype == torch.float32
    assert torch.allclose(half(x.bfloat16()).float(), exact, atol=0.05)
    assert half.materialise().mixes[0].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("wrong", [{"inputs": 0}, {"outputs": 2.5}, {"stride": 0}, {"groups": -1}])
def test_wrong_numbers(wrong) -> None:
    with pytest.raises(SparsityError, match=next(iter(wrong))):
        WiredStage(**{"inputs": 2, "outputs": 2, **wrong})


def test_ordinary_keeps_hooks_and_leaves_flags_alone() -> None:
    torch.manual_seed(0)
    stage = WiredStage(2, 3, groups=2).train()
    stage.nodes[0].norm.eval()
    stage.register_forward_hook(lambda module, args, output: output * 2)
    plain = stage.materialise()
    assert not stage.nodes[0].norm.training
    assert (plain.training, plain.mixes[1].training, stage.nodes[1].norm.training) == (True, True, True)
    x = torch.randn(2, 2, 4, 4)
    assert torch.allclose(plain.eval()(x), stage.eval()(x), atol=1e-6)
    plain.register_forward_hook(lambda module, args, output: output * 2)
    assert not torch.allclose(plain(x), stage(x), atol=1e-6)


def test_a_stage_with_a_forward_of_its_own_has_no_ordinary_form() -> None:
    class Residual(WiredStage):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x

    with pytest.raises(SparsityError, match="Residual has a forward of its own"):
        Residual(2, 2).materialise()
