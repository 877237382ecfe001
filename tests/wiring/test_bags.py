import copy
import pickle

import pytest
import torch
from torch import nn

from diffsparse.wiring.bags import DenseMix, SparseConv, SparseMix
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
@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 3},
        {"kernel_size": (1, 4), "stride": (2, 1), "padding": (0, 3)},
        {"kernel_size": 3, "padding": 2, "dilation": (2, 1)},
        {"kernel_size": 3, "padding": 1, "groups": 1, "bias": True},
        {"kernel_size": 1, "groups": 2, "out_channels": 4, "bias": True},
        {"kernel_size": 3, "padding": 1, "groups": 3, "out_channels": 3},
    ],
    ids=str,
)
def test_sparse_convolutions_are_the_convolution(settings, dtype) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(6, **({"out_channels": 6, "groups": 6, "bias": False} | settings)).to(dtype)
    sparse = SparseConv(conv)
    reference = copy.deepcopy(conv).double()
    for images, height, width in ((2, 6, 9), (3, 6, 9), (1, 4, 4), (0, 6, 9), (4, 3, 3)):
        x = torch.randn(images, 6, height, width, dtype=dtype)
        got = sparse(images_last(x)).permute(3, 0, 1, 2)
        expected = reference(x.double())
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert torch.allclose(got.double(), expected, atol=1e-5 if dtype != torch.bfloat16 else 0.05)


def test_filters_follow_their_weights_and_their_dtype() -> None:
    torch.manual_seed(0)
    first, second = (nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False) for _ in range(2))
    filters = SparseConv(first)
    x = torch.randn(2, 3, 4, 4)
    assert torch.allclose(filters(images_last(x)).permute(3, 0, 1, 2), first(x), atol=1e-6)
    filters.load_state_dict(SparseConv(second).state_dict())
    assert torch.allclose(filters(images_last(x)).permute(3, 0, 1, 2), second(x), atol=1e-6)
    x, second = x.double(), second.double()
    assert torch.allclose(filters.double()(images_last(x)).permute(3, 0, 1, 2), second(x), atol=1e-12)


@pytest.mark.parametrize("groups", [6, 2])
def test_maps_that_are_one_number(groups) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(6, 6, 3, 2, 1, groups=groups, bias=groups == 2)
    live, fill = torch.tensor([0, 3]), torch.tensor([9.0, 2.0, 0.5, 9.0, 0.0, -1.0])
    sparse = SparseConv(conv, live, fill)
    for dtype, size in ((torch.float32, 6), (torch.float64, 7)):
        x = torch.randn(2, 2, size, size, dtype=dtype)
        full = fill.to(dtype).view(1, 6, 1, 1).repeat(2, 1, size, size)
        full[:, live] = x
        got = sparse.to(dtype)(images_last(x)).permute(3, 0, 1, 2)
        assert torch.allclose(got, conv.to(dtype)(full), atol=1e-5)


def test_layouts_of_the_last_sizes_are_kept_and_not_copied() -> None:
    filters = SparseConv(nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False))
    for size in (4, 5, 4, 6, 7, 8, 4):
        before = filters._layouts
        filters(torch.randn(3, size, size, 2))
        assert (filters._layouts is before) == (size in [layout.key[0][1] for layout in before])
    assert [layout.key[0][1] for layout in filters._layouts] == [4, 8, 7, 6]
    for other in (copy.deepcopy(filters), pickle.loads(pickle.dumps(filters))):
        assert other._layouts == ()
        x = torch.randn(3, 5, 5, 2)
        assert torch.equal(other(x), filters(x))
