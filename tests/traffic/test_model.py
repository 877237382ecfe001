"""The traffic model: its parts against the description, one adjacency a pass, compaction and learning."""

import copy

import pytest
import torch
import torch.nn.functional as F

import diffsparse as ds
from diffsparse.nn import SparseAdjacency, graph
from diffsparse.traffic.model import TrafficGCN


def small(nodes=6, **settings):
    torch.manual_seed(0)
    return TrafficGCN(nodes, width=8, blocks=3, **{"mean": 50.0, "std": 10.0, **settings})


def speeds(count=4, nodes=6, history=8):
    return 30 + 40 * torch.rand(count, history, nodes, generator=torch.Generator().manual_seed(1))


def test_sizes_are_those_of_the_paper() -> None:
    model = TrafficGCN(170)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.dim() == 2}
    assert [shapes[f"input_block.{i}.weight"] for i in (0, 2, 4)] == [(64, 8), (64, 64), (64, 64)]
    assert [shapes[f"blocks.{i}.linear.weight"] for i in range(5)] == [(64, 64)] * 5
    assert [shapes[f"output_block.{i}.weight"] for i in (0, 2, 4)] == [(64, 320), (64, 64), (1, 64)]
    assert shapes["adjacency.alpha"] == (170, 170)


def test_value_is_the_description() -> None:
    model, x = small(), speeds()
    a = model.adjacency()
    weights = dict(model.named_parameters())

    def dense(h: torch.Tensor, block: str, index: int) -> torch.Tensor:
        return h @ weights[f"{block}.{index}.weight"].T + weights[f"{block}.{index}.bias"]

    h = ((x - 50) / 10).transpose(1, 2)
    for index in (0, 2, 4):
        h = F.relu(dense(h, "input_block", index))
    outputs = []
    for index in range(3):
        mixed = torch.einsum("ij,njf,of->nio", a, h, weights[f"blocks.{index}.linear.weight"])
        h = F.relu(mixed + weights[f"blocks.{index}.bias"])
        outputs.append(h)
    h = torch.cat(outputs, -1)
    h = F.relu(dense(F.relu(dense(h, "output_block", 0)), "output_block", 2))
    expected = dense(h, "output_block", 4)[..., 0] * 10 + 50
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-4)


def test_scale_is_kept_with_the_weights_and_undone_in_the_output() -> None:
    model, x = small(), speeds()
    other = small(mean=0.0, std=1.0)
    torch.testing.assert_close(model(x), other((x - 50) / 10) * 10 + 50)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


def test_adjacency_is_computed_once_a_pass() -> None:
    model = small()
    calls = []
    model.adjacency.register_forward_hook(lambda *_: calls.append(1))
    model(speeds())
    assert len(calls) == 1


def test_nodes_that_no_path_connects_do_not_meet() -> None:
    blocks = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).bool()
    model, x = small(adjacency=SparseAdjacency(6, mask=blocks)), speeds()
    changed = x.clone()
    changed[:, :, 3] += 20
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :2], after[:, :2])
    assert (before[:, 2:] != after[:, 2:]).any()


def test_evaluation_with_a_sparse_adjacency_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small(), speeds()
    model.adjacency.alpha.detach().normal_(0, 2)
    model.adjacency.beta_row.detach().fill_(-2.0)
    expected = model(x).detach()
    monkeypatch.setattr(graph, "SPARSE_NODES", 2)
    monkeypatch.setattr(graph, "SPARSE_DENSITY", 1.0)
    layouts = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: layouts.append(args[1].layout))
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model(x), expected)
    assert layouts == [torch.sparse_csr, torch.strided]


@pytest.mark.parametrize("sparse", [True, False])
def test_compaction_and_measurement_leave_the_function_alone(monkeypatch: pytest.MonkeyPatch, sparse: bool) -> None:
    model, x = small(), speeds()
    model.adjacency.beta_row.detach()[2] = 5.0
    if sparse:
        monkeypatch.setattr(graph, "SPARSE_NODES", 2)
        monkeypatch.setattr(graph, "SPARSE_DENSITY", 1.0)
    compacted = ds.compact(model, x)
    model.eval()
    torch.testing.assert_close(compacted.model.eval()(x), model(x))
    assert compacted.after.params <= compacted.before.params


def test_autocast_and_copies() -> None:
    model, x = small(), speeds()
    expected = model(x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x).detach().float(), expected, rtol=0.02, atol=0.2)
    assert torch.equal(copy.deepcopy(model)(x), expected)


def test_learns_from_the_right_neighbour() -> None:
    """The next speed of a node is the last one of its predecessor; the loss falls and the graph becomes sparse."""
    model = small(4)
    penalty = ds.Penalty(model, norm=ds.Lp(0.5), strength=1e-3)
    optimizer = torch.optim.Adam(ds.parameter_groups(model, weight_decay=0.0), lr=0.01)
    losses = []
    for _ in range(80):
        x = 30 + 40 * torch.rand(16, 8, 4)
        target = x[:, -1].roll(1, -1)
        relative = ((model(x) - target).abs() / target).mean()
        optimizer.zero_grad()
        (relative + penalty()).backward()
        optimizer.step()
        losses.append(relative.item())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert (model.adjacency() == 0).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: small(1), "nodes must.*got 1"),
        (lambda: small(history=0), "history must.*got 0"),
        (lambda: small(std=0.0), "std must.*above 0, got 0.0"),
        (lambda: small(mean=float("nan")), "mean must.*got nan"),
        (lambda: small(adjacency=SparseAdjacency(5)), "SparseAdjacency of 6 nodes, got SparseAdjacency.5 nodes"),
        (lambda: small(adjacency=torch.eye(6)), "SparseAdjacency of 6 nodes, got tensor"),
        (lambda: small()(torch.ones(4, 6, 8)), r"\(N, 8, 6\), got \(4, 6, 8\)"),
        (lambda: small()(torch.ones(8, 6)), r"\(N, 8, 6\), got \(8, 6\)"),
    ],
)
def test_wrong_arguments(call, message) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        call()
