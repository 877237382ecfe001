import pytest
import torch
from torch import nn

from diffsparse.wiring import Proximal, WiredStage
from diffsparse.wiring.table import DenseMix, SparseMix, TableStage
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


@pytest.mark.parametrize("images", [1, 2, 5, 64])
def test_table_stage_in_pieces(images) -> None:
    torch.manual_seed(0)
    stage = shifted(WiredStage(3, 5, 2, 3, edges=Proximal(strength=0.0)))
    drop(0.6)(matrices(stage))
    ordinary = stage.ordinary()
    # the middle one stays a module on maps
    mixes = nn.ModuleList(
        [SparseMix(stage.edges()[0]), ordinary.mixes[1], DenseMix(stage.edges()[2], torch.arange(5.0))]
    )
    fast = TableStage(stage.nodes, mixes, 3 + 5 + 5, images)
    for count in (1, 5, 7):
        x = torch.randn(count, 3, 6, 9)
        expected = stage(x) + torch.arange(5.0)[:, None, None]
        got = fast(x)
        assert got.is_contiguous()
        assert not got.requires_grad
        assert torch.allclose(got, expected, atol=1e-5)
    assert fast(torch.zeros(0, 3, 6, 9)).shape == (0, 5, 3, 5)
