"""Layers written as matrix products with a stored matrix."""

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import X, tiny


class Product(nn.Module):
    def __init__(self, inputs: int = 8, outputs: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def forward(self, y: Tensor) -> Tensor:
        return (y.permute(0, 2, 3, 1) @ self.weight).permute(0, 3, 1, 2)


def test_a_product_with_a_stored_matrix_is_a_layer() -> None:
    model = tiny(Product(), dead=[0, 1, 5], head=6)
    model.between.weight.data[:, 4] = 0
    model.head.weight.data[:, 2] = 0
    # the oracle sees no weights but those of layers
    small = shrinks(model, most=2)
    assert small.model.between.weight.shape == (5, 4)
    assert small.after.macs == ds.compaction.live_macs(model, X)


class Mlp(nn.Module):
    """As GPT-2 has it."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.up, self.down = kind(12, 8), kind(8, 12)

    def forward(self, y: Tensor) -> Tensor:
        return self.down(self.up(y.permute(0, 2, 3, 1).contiguous()).relu()).permute(0, 3, 1, 2)


def test_conv1d_of_transformers_gets_a_select_and_an_expand() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    mlp = Mlp(transformers.pytorch_utils.Conv1D)
    model = tiny(Residual(mlp), dead=[0, 1, 5], fixed=[3])
    mlp.up.weight.data[:, [2, 3, 4]] = 0
    mlp.up.bias.data[[2, 3]] = 0
    mlp.down.weight.data[:, [0, 6]] = 0
    mlp.down.bias.data[[0, 6]] = 0
    small = ds.compact(model, X)
    up, down = small.model.between.inner.up, small.model.between.inner.down
    assert (up.nx, up.nf, tuple(up.weight.shape)) == (4, 9, (4, 9))
    assert (down.nx, down.nf, tuple(down.weight.shape)) == (9, 6, (9, 6))
    assert not small.fallbacks
    for x in (torch.randn(3, 3, 5, 7).double(), torch.randn(1, 3, 8, 8).double()):
        assert torch.allclose(model(x), small.model(x), rtol=0, atol=1e-9)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, y: Tensor) -> Tensor:
        return y + self.inner(y)


def test_addmm_in_other_forms_is_a_product() -> None:
    class Scaled(Product):
        def forward(self, y: Tensor) -> Tensor:
            pooled = y.mean((2, 3))
            return torch.addmm(torch.zeros(6, dtype=y.dtype), pooled, self.weight, alpha=2)

    model = tiny(Scaled(), dead=[0, 1], head=nn.Linear(6, 3))
    small = ds.compact(model, X)
    assert small.model.conv.out_channels == 6
    assert torch.allclose(model(X), small.model(X), rtol=0, atol=1e-9)
