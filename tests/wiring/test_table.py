import pytest
import torch
from torch import nn

from diffsparse.wiring import Proximal, WiredStage
from diffsparse.wiring.stage import Nodes
from diffsparse.wiring.table import (
    DenseMix,
    ImagesLast,
    OnMaps,
    SparseFilters,
    SparseMix,
    SparseNodes,
    TableStage,
    images_last,
)
from tests.wiring.nets import drop, matrices, shifted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("kind", [DenseMix, SparseMix])
def test_mixes_are_the_matrix_product(kind, biased, dtype) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(6, 9) * (torch.rand(6, 9) < 0.3)
    matrix[[0, 3, 5]] = 0.0  # nodes without edges, the first and the last among them
    bias = torch.randn(6) if biased else None
    table = torch.randn(9, 20)
    expected = matrix.double() @ table.double() + (bias.double()[:, None] if bias is not None else 0)
    mix = kind(matrix.to(dtype), None if bias is None else bias.to(dtype))
    given = table.to(dtype)
    got = mix(given)
    assert got.dtype == dtype
    assert torch.allclose(got.double(), expected, atol=1e-5 if dtype != torch.bfloat16 else 0.1)
    assert torch.equal(given, table.to(dtype))


def test_a_sparse_mix_holds_its_edges_only() -> None:
    matrix = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 3.0]])
    mix = SparseMix(matrix)
    assert mix.values.tolist() == [2.0, -1.0, 3.0]
    assert mix.columns.tolist() == [1, 0, 2]
    assert mix.starts.tolist() == [0, 1, 1]
    assert SparseMix(torch.zeros(2, 3))(torch.ones(3, 4)).tolist() == [[0.0] * 4] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (3, 3, 0), ((1, 4), (2, 1), (0, 3))])
def test_filters_are_the_convolution(kernel, stride, padding, dtype) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(5, 5, kernel, stride, padding, groups=5, bias=False).to(dtype)
    filters = SparseFilters(conv)
    for images, height, width in ((2, 6, 9), (3, 6, 9), (1, 4, 4), (0, 6, 9), (4, 3, 3)):
        x = torch.randn(images, 5, height, width, dtype=dtype)
        got = filters(images_last(x)).permute(3, 0, 1, 2)
        expected = conv.double()(x.double())
        conv.to(dtype)
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert torch.allclose(got.double(), expected, atol=1e-5 if dtype != torch.bfloat16 else 0.05)


def test_filters_follow_their_weights_and_their_dtype() -> None:
    torch.manual_seed(0)
    first, second = (nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False) for _ in range(2))
    filters = SparseFilters(first)
    x = torch.randn(2, 3, 4, 4)
    assert torch.allclose(filters(images_last(x)).permute(3, 0, 1, 2), first(x), atol=1e-6)
    filters.load_state_dict(SparseFilters(second).state_dict())
    assert torch.allclose(filters(images_last(x)).permute(3, 0, 1, 2), second(x), atol=1e-6)
    x, second = x.double(), second.double()
    assert torch.allclose(filters.double()(images_last(x)).permute(3, 0, 1, 2), second(x), atol=1e-12)


def test_sparse_nodes_write_to_their_input_only_if_they_may() -> None:
    torch.manual_seed(0)
    nodes = shifted(Nodes(4, 2))
    x = torch.randn(3, 4, 5, 7)
    for norm in (nodes.norm, nn.Identity()):
        expected = nodes.filter(torch.relu(norm(x)))
        for inplace in (False, True):
            maps = images_last(x).clone()
            got = SparseNodes(norm, nodes.filter, inplace=inplace)(maps)
            assert torch.allclose(got.permute(3, 0, 1, 2), expected, atol=1e-6)
            assert torch.equal(maps, images_last(x)) == (not inplace or norm is nodes.norm)


@pytest.mark.parametrize("layout", ["usual", "images last", "channels last"])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("images", [1, 2, 5, 64])
def test_table_stage_in_pieces(images, contiguous, layout) -> None:
    torch.manual_seed(0)
    stage = shifted(WiredStage(3, 5, 2, 3, edges=Proximal(strength=0.0)))
    drop(0.6)(matrices(stage))
    ordinary = stage.ordinary()
    # in the middle, modules for ordinary maps
    mixes = nn.ModuleList(
        [SparseMix(stage.edges()[0]), OnMaps(ordinary.mixes[1]), DenseMix(stage.edges()[2], torch.arange(5.0))]
    )
    first, middle, last = stage.nodes
    nodes = nn.ModuleList(
        [
            SparseNodes(first.norm, first.filter, inplace=False),
            OnMaps(middle),
            SparseNodes(last.norm, last.filter, inplace=True),
        ]
    )
    fast = TableStage(nodes, mixes, 3 + 5 + 5, images, contiguous=contiguous)
    for count in (1, 5, 7):
        x = torch.randn(count, 3, 6, 9)
        expected = stage(x) + torch.arange(5.0)[:, None, None]
        if layout == "images last":
            x = ImagesLast()(x)
        elif layout == "channels last":
            x = x.to(memory_format=torch.channels_last)
        given = x.clone()
        got = fast(x)
        assert (got if contiguous else got.permute(1, 2, 3, 0)).is_contiguous()
        assert not got.requires_grad
        assert torch.allclose(got, expected, atol=1e-5)
        assert torch.equal(x, given)
    assert fast(torch.zeros(0, 3, 6, 9)).shape == (0, 5, 3, 5)


def test_half_the_network_in_lower_precision() -> None:
    """Under autocast, maps arrive in another dtype than the weights have."""
    torch.manual_seed(0)
    stage = shifted(WiredStage(3, 5, groups=2, edges=Proximal(strength=0.0)))
    mixes = nn.ModuleList([SparseMix(stage.edges()[0]), DenseMix(stage.edges()[1], torch.zeros(5))])
    nodes = nn.ModuleList(SparseNodes(group.norm, group.filter, inplace=False) for group in stage.nodes)
    fast = TableStage(nodes, mixes, 3 + 5, 4)
    x = torch.randn(2, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        got = fast(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), stage(x), atol=0.1)
