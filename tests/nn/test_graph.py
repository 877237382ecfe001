"""Graph convolution against loops, and its sparse product against the dense one."""

import copy
import warnings

import pytest
import torch

from diffsparse import SparsityError
from diffsparse.nn import GraphConvolution, SparseAdjacency, graph
from diffsparse.nn.graph import sparse_if_faster

F64 = torch.float64


@pytest.fixture
def always_sparse(monkeypatch):
    """Sparse products for adjacencies of any size and density."""
    monkeypatch.setattr(graph, "SPARSE_NODES", 1)
    monkeypatch.setattr(graph, "SPARSE_DENSITY", 1.0)


def sparse_matrix(n=5, dtype=F64):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(n, n, generator=generator, dtype=dtype)
    matrix[matrix < 0.6] = 0
    matrix[1] = 0
    return matrix


def features(*batch, n=5, width=3, dtype=F64):
    return torch.randn(*batch, n, width, generator=torch.Generator().manual_seed(1), dtype=dtype)


def loop(layer, h, a):
    """sum_j sum_f A[i, j] H[j, f] W[f, o] + b[o] for one graph."""
    weight = layer.linear.weight
    out = torch.zeros(len(a), weight.shape[0], dtype=F64)
    for i in range(len(a)):
        for o in range(weight.shape[0]):
            for j in range(len(a)):
                for f in range(weight.shape[1]):
                    out[i, o] += a[i, j] * h[j, f] * weight[o, f]
            if layer.bias is not None:
                out[i, o] += layer.bias[o]
    return out


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,)])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_value_is_the_formula(batch, bias, form):
    torch.manual_seed(2)
    layer = GraphConvolution(3, 2, bias=bias, dtype=F64)
    if bias:
        layer.bias.detach().normal_()
    h, a = features(*batch), sparse_matrix()
    got = layer(h, a if form == "dense" else as_csr(a)).detach()
    assert got.shape == (*batch, 5, 2)
    for one, expected in zip(got.reshape(-1, 5, 2), h.reshape(-1, 5, 3), strict=True):
        torch.testing.assert_close(one, loop(layer, expected, a).detach())


def as_csr(a):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return a.to_sparse_csr()


def test_gradcheck():
    torch.manual_seed(0)
    layer = GraphConvolution(3, 2, dtype=F64)
    inputs = [features(2), sparse_matrix(), layer.linear.weight, layer.bias]

    def call(h, a, weight, bias):
        return torch.func.functional_call(layer, {"linear.weight": weight, "bias": bias}, (h, a))

    assert torch.autograd.gradcheck(call, [t.detach().clone().requires_grad_() for t in inputs])


def test_bias_starts_at_zero_so_that_an_isolated_node_gives_zeros():
    assert not GraphConvolution(3, 2, dtype=F64)(features(4), sparse_matrix())[:, 1].any()


def test_evaluation_is_sparse_and_equal(always_sparse):
    torch.manual_seed(0)
    layers = [GraphConvolution(3, 3) for _ in range(4)]
    h, a = features(6, dtype=torch.float32), sparse_matrix(dtype=torch.float32)
    outputs = []
    for mode in (True, False):
        out = h
        for layer in layers:
            out = torch.relu(layer.train(mode)(out, a))
        outputs.append(out)
    torch.testing.assert_close(outputs[0], outputs[1])
    # nodes come first in memory where the products were sparse
    assert outputs[0].is_contiguous()
    assert outputs[1].movedim(-2, 0).is_contiguous()


def test_gradients_flow_past_a_sparse_adjacency(always_sparse):
    layer, a = GraphConvolution(3, 2, dtype=F64), sparse_matrix()
    got = []
    for mode in (True, False):
        h = features(4).requires_grad_()
        layer.train(mode).zero_grad()
        layer(h, a).square().sum().backward()
        got.append((h.grad, layer.linear.weight.grad.clone(), layer.bias.grad.clone()))
    torch.testing.assert_close(got[0], got[1])


def test_becomes_sparse_only_where_that_pays():
    nodes, density = graph.SPARSE_NODES, graph.SPARSE_DENSITY
    thin = torch.zeros(nodes, nodes)
    thin.view(-1)[: int(density * nodes * nodes)] = 1.0
    assert torch.equal(sparse_if_faster(thin).to_dense(), thin)
    assert sparse_if_faster(thin).layout == torch.sparse_csr
    assert sparse_if_faster(sparse_if_faster(thin)).layout == torch.sparse_csr
    thicker = thin.clone()
    thicker.view(-1)[: int(density * nodes * nodes) + 1] = 1.0
    for other in (thicker, thin[1:, 1:], thin.half(), thin.clone().requires_grad_(), thin.to("meta")):
        assert sparse_if_faster(other) is other
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sparse_if_faster(thin) is thin


def test_training_and_gradients_of_the_adjacency_keep_it_dense(always_sparse):
    adjacency, layer = SparseAdjacency(5), GraphConvolution(3, 2).eval()
    layer(features(dtype=torch.float32), adjacency()).sum().backward()
    assert adjacency.alpha.grad is not None


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_half_precision_and_autocast(form):
    torch.manual_seed(0)
    layer, h, a = GraphConvolution(3, 2), features(4, dtype=torch.float32), sparse_matrix(dtype=torch.float32)
    expected = layer(h, a).detach()
    operand = a if form == "dense" else as_csr(a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(h, operand).detach().float(), expected, rtol=0.05, atol=0.05)
    halved = copy.deepcopy(layer).bfloat16()(h.bfloat16(), operand)
    assert halved.dtype == torch.bfloat16
    torch.testing.assert_close(halved.detach().float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("train", [True, False])
def test_compiles_to_one_graph(always_sparse, train):
    layer, h, a = GraphConvolution(3, 2, dtype=F64).train(train), features(4), sparse_matrix()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(h, a), layer(h, a))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GraphConvolution(0, 2), "in_features must.*got 0"),
        (lambda: GraphConvolution(2, 2.5), "out_features must.*got 2.5"),
        (lambda: GraphConvolution(3, 2)(torch.ones(5, 3), torch.ones(5, 4)), r"must be \(n, n\), got shape \(5, 4\)"),
        (lambda: GraphConvolution(3, 2)(torch.ones(5, 3), torch.ones(5)), r"must be \(n, n\), got shape \(5,\)"),
        (lambda: GraphConvolution(3, 2)(torch.ones(7, 4, 3), torch.ones(5, 5)), r"5, 3\) for 5 nodes, got \(7, 4, 3\)"),
        (lambda: GraphConvolution(3, 2)(torch.ones(7, 5, 4), torch.ones(5, 5)), r"5, 3\) for 5 nodes, got \(7, 5, 4\)"),
        (lambda: GraphConvolution(3, 2)(torch.ones(3), torch.ones(5, 5)), r"5, 3\) for 5 nodes, got \(3,\)"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(SparsityError, match=message):
        call()


def test_an_adjacency_that_was_not_called_is_named():
    with pytest.raises(SparsityError, match=r"needs the matrix A, such as adjacency\(\), got SparseAdjacency"):
        GraphConvolution(3, 2)(torch.randn(1, 5, 3), SparseAdjacency(5))
