import pytest
import torch
from torch import nn

from diffsparse.wiring import Proximal, WiredStage
from diffsparse.wiring.bags import DenseMix, SparseConv, SparseMix
from diffsparse.wiring.stage import Nodes
from diffsparse.wiring.table import ImagesLast, OnMaps, SparseNodes, TableStage, edge_matrix, images_last
from tests.wiring.nets import drop, matrices, shifted


def test_sparse_nodes_write_to_their_input_only_if_they_may() -> None:
    torch.manual_seed(0)
    nodes = shifted(Nodes(4, 2))
    x = torch.randn(3, 4, 5, 7)
    for norm in (nodes.norm, nn.Identity()):
        expected = nodes.filter(torch.relu(norm(x)))
        for inplace in (False, True):
            maps = images_last(x).clone()
            got = SparseNodes(norm, SparseConv(nodes.filter), inplace=inplace)(maps)
            assert torch.allclose(got.permute(3, 0, 1, 2), expected, atol=1e-6)
            assert torch.equal(maps, images_last(x)) == (not inplace or norm is nodes.norm)


@pytest.mark.parametrize("layout", ["usual", "images last", "channels last"])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("images", [1, 2, 5, 64])
def test_table_stage_in_pieces(images, contiguous, layout) -> None:
    torch.manual_seed(0)
    stage = shifted(WiredStage(3, 5, 2, 3, edges=Proximal(strength=0.0)))
    drop(0.6)(matrices(stage))
    ordinary = stage.materialise()
    # in the middle, modules for ordinary maps
    mixes = nn.ModuleList(
        [SparseMix(stage.edges()[0]), OnMaps(ordinary.mixes[1]), DenseMix(stage.edges()[2], torch.arange(5.0))]
    )
    first, middle, last = stage.nodes
    nodes = nn.ModuleList(
        [
            SparseNodes(first.norm, SparseConv(first.filter), inplace=False),
            OnMaps(middle),
            SparseNodes(last.norm, SparseConv(last.filter), inplace=True),
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
    nodes = nn.ModuleList(SparseNodes(group.norm, SparseConv(group.filter), inplace=False) for group in stage.nodes)
    fast = TableStage(nodes, mixes, 3 + 5, 4)
    x = torch.randn(2, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        got = fast(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), stage(x), atol=0.1)


def test_select_and_expand_around_a_convolution_are_part_of_the_matrix() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 1)
    conv.register_buffer("select_index", torch.tensor([1, 3]))
    conv.register_buffer("expand_index", torch.tensor([0, 2, 4]))
    conv.register_buffer("expand_fill", torch.tensor([9.0, 5.0, 9.0, 0.0, 9.0]))
    x = torch.randn(1, 4, 1, 1)
    matrix, bias = edge_matrix(conv, 4)
    expected = torch.tensor([0.0, 5.0, 0.0, 0.0, 0.0])
    expected[[0, 2, 4]] = conv(x[:, [1, 3]]).flatten()
    assert torch.allclose(matrix @ x.flatten() + bias, expected)
