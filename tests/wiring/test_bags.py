import copy
import pickle

import pytest
import torch
from torch import nn

from diffsparse.wiring.bags import DenseMix, SparseFilters, SparseMix
from diffsparse.wiring.table import images_last


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


def test_filters_of_constant_nodes() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(5, 5, 3, 2, 1, groups=5, bias=False)
    live, fill = torch.tensor([0, 3]), torch.tensor([9.0, 2.0, 0.5, 9.0, 0.0])
    filters = SparseFilters(conv, live, fill)
    for dtype, size in ((torch.float32, 6), (torch.float64, 7)):
        x = torch.randn(2, 2, size, size, dtype=dtype)
        full = fill.to(dtype).view(1, 5, 1, 1).repeat(2, 1, size, size)
        full[:, live] = x
        got = filters.to(dtype)(images_last(x)).permute(3, 0, 1, 2)
        assert torch.allclose(got, conv.to(dtype)(full), atol=1e-6)


def test_layouts_of_the_last_sizes_are_kept_and_not_copied() -> None:
    filters = SparseFilters(nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False))
    for size in (4, 5, 4, 6, 7, 8, 4):
        before = filters._layouts
        filters(torch.randn(3, size, size, 2))
        assert (filters._layouts is before) == (size in [layout.key[0][1] for layout in before])
    assert [layout.key[0][1] for layout in filters._layouts] == [4, 8, 7, 6]
    for other in (copy.deepcopy(filters), pickle.loads(pickle.dumps(filters))):
        assert other._layouts == ()
        x = torch.randn(3, 5, 5, 2)
        assert torch.equal(other(x), filters(x))
