"""Tables: columns that hold one number."""

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds


class Words(nn.Module):
    def __init__(self, tied: bool = False, **options: float) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(11, 8, **options), nn.Linear(8, 11, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids).tanh())


def words(**options: object) -> Words:
    torch.manual_seed(0)
    model = Words(**options).double().eval()
    model.table.weight.data[:, [0, 3]] = 0
    model.table.weight.data[:, 5] = 0.7
    return model


IDS = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(0))
OTHERS = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(1))


def test_constant_columns_leave_the_table() -> None:
    model = words()
    small = ds.compact(model, IDS)
    assert small.model.table.weight.shape == (11, 5)
    assert small.model.table.embedding_dim == 5
    assert small.model.out.in_features == 5
    assert torch.allclose(model(OTHERS), small.model(OTHERS), rtol=0, atol=1e-9)
    rounded = ds.compact(model, IDS, round_to=4).model
    assert rounded.out.in_features == 8
    assert torch.allclose(model(OTHERS), rounded(OTHERS), rtol=0, atol=1e-9)


def test_columns_that_nobody_reads_leave_too() -> None:
    model = words()
    model.out.weight.data[:, 6] = 0
    assert ds.compact(model, IDS).model.table.embedding_dim == 4


def test_a_tied_table_keeps_its_width() -> None:
    model = words(tied=True)
    small = ds.compact(model, IDS)
    assert small.model.out.weight is small.model.table.weight
    assert torch.allclose(model(OTHERS), small.model(OTHERS), rtol=0, atol=1e-9)


def test_a_table_without_live_columns_keeps_one() -> None:
    model = words()
    model.table.weight.data[:] = 0
    with pytest.warns(ds.SparsityWarning):
        small = ds.compact(model, IDS)
    assert torch.allclose(model(OTHERS), small.model(OTHERS), rtol=0, atol=1e-9)


def test_a_table_that_lookups_change_is_left_alone() -> None:
    model = words(max_norm=1.0)
    small = ds.compact(model, IDS)
    assert small.model.table.embedding_dim == 8
    assert any("embedding" in entry.reason for entry in small.kept)


class Relative(nn.Module):
    """A bias for each head and distance, stored as a table with one column per head."""

    def __init__(self, heads: int = 4, size: int = 3) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, heads * size) for _ in range(3))
        self.out, self.size = nn.Linear(heads * size, 6), size
        self.table = nn.Parameter(torch.randn(7, heads))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], -1, self.size).transpose(1, 2) for layer in (self.q, self.k, self.v))
        steps = torch.arange(x.shape[1])
        bias = self.table[(steps[:, None] - steps).clamp(-3, 3) + 3].permute(2, 0, 1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))
        return x + self.out(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))


@pytest.mark.parametrize("dead", [[1, 2], [0, 1, 2, 3]])
def test_a_table_that_is_indexed_loses_the_columns_of_dead_heads(dead: list[int]) -> None:
    torch.manual_seed(0)
    model = Relative().double().eval()
    model.out.weight.data.view(6, 4, 3)[:, dead] = 0
    small = ds.compact(model, torch.randn(2, 5, 6, dtype=torch.float64))
    # one head stays, so that there is something to run
    assert small.model.table.shape == (7, max(4 - len(dead), 1))
    x = torch.randn(3, 8, 6, dtype=torch.float64)
    assert torch.allclose(model(x), small.model(x), rtol=0, atol=1e-12)
