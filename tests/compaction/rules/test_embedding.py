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
