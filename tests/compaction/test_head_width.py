"""Heads whose channels die unevenly: all of them become as narrow as the widest, and scores are scaled as before."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction import live_macs
from tests.compaction.nets import randomise

HEADS, SIZE = 3, 8
KEYS, VALUES = [2, 5, 3], [4, 1, 6]
"""Live channels of each head: of keys, and of what the next layer reads."""
Scores = Callable[[Any, Tensor, Tensor], Tensor]
SCORES: dict[str, Scores] = {
    "number": lambda m, q, k: q @ k.transpose(-2, -1) * 0.3,
    "stored": lambda m, q, k: q @ k.transpose(-2, -1) * m.scale,
    "width": lambda m, q, k: q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5,
    "divided": lambda m, q, k: (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1]),
    "attribute": lambda m, q, k: torch.einsum("bhid,bhjd->bhij", q, k) * m.head_dim**-0.5,
    "both": lambda m, q, k: (q * q.shape[-1] ** -0.25) @ (k * k.shape[-1] ** -0.25).transpose(-2, -1),
}
FUSED: dict[str, dict[str, float]] = {"fused": {}, "fused with a scale": {"scale": 0.3}}


class Attention(nn.Module):
    """Tokens from three layers, `how` scores are made and scaled."""

    def __init__(self, how: str, width: int = 6, heads: int = HEADS) -> None:
        super().__init__()
        self.how, self.heads, self.head_dim, self.scale = how, heads, SIZE, SIZE**-0.5
        self.q, self.k, self.v = (nn.Linear(width, heads * SIZE) for _ in range(3))
        self.out = nn.Linear(heads * SIZE, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.how in FUSED:
            y = F.scaled_dot_product_attention(q, k, v, **FUSED[self.how])
        else:
            y = SCORES[self.how](self, q, k).softmax(-1) @ v
        z: Tensor = self.out(y.transpose(1, 2).reshape(*x.shape[:2], -1))
        return x + z


@torch.no_grad()
def uneven(model: Any, keys: list[int] = KEYS, values: list[int] = VALUES) -> Any:
    """The network with so many live channels in each head, at places of their own."""
    randomise(model.double()).eval()
    generator = torch.Generator().manual_seed(1)
    for head, (of_keys, of_values) in enumerate(zip(keys, values, strict=True)):
        dead = head * SIZE + torch.randperm(SIZE, generator=generator)[of_keys:]
        model.k.weight[dead] = 0
        model.k.bias[dead] = 0
        model.out.weight[:, head * SIZE + torch.randperm(SIZE, generator=generator)[of_values:]] = 0
    return model


def tokens(batch: int = 2, length: int = 7) -> Tensor:
    return torch.randn(batch, length, 6, dtype=torch.float64)


def assert_same(model: nn.Module, small: nn.Module) -> None:
    for batch, length in ((2, 7), (1, 3), (3, 12)):
        x = tokens(batch, length)
        with torch.no_grad():
            assert torch.allclose(model(x), small(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", [*SCORES, *FUSED])
def test_heads_are_as_wide_as_the_widest(how):
    model = uneven(Attention(how))
    small = ds.compact(model, tokens())
    layers = (small.model.q, small.model.k, small.model.v)
    # they compute what is live, and one given width serves all three
    assert [layer.out_features for layer in layers] == [10, 10, 11]
    assert [layer(tokens()).shape[-1] for layer in layers] == [18] * 3
    assert (small.model.head_dim, small.model.out.in_features) == (6, 11)
    assert not small.fallbacks
    assert not small.insists_on_head_width
    assert small.plan.layers["q"].rescaled == (how in {"width", "divided", "attribute", "both", "fused"})
    assert live_macs(model, tokens()) == small.after.macs
    assert_same(model, small.model)


@pytest.mark.parametrize("how", [*SCORES, *FUSED])
@pytest.mark.parametrize(("keys", "values"), [(3, 5), (5, 3), (8, 3)])
def test_a_single_head_is_as_wide_as_what_shares_its_given_width(how, keys, values):
    model = uneven(Attention(how, heads=1), [keys], [values])
    small = ds.compact(model, tokens())
    assert small.fallbacks == ()
    assert [small.model.q.out_features, small.model.v.out_features] == [keys, values]
    assert small.model.head_dim == max(keys, values)
    assert_same(model, small.model)


def test_a_dead_head_leaves_as_well():
    model = uneven(Attention("width"), [2, 0, 3], [4, 0, 2])
    small = ds.compact(model, tokens())
    assert (small.model.head_dim, small.model.k(tokens()).shape[-1]) == (4, 8)
    assert_same(model, small.model)


def test_saved_loaded_and_compacted_again(tmp_path):
    model = uneven(Attention("width"))
    small = ds.compact(model, tokens())
    ds.save(small, tmp_path / "net.safetensors")
    again = ds.load(tmp_path / "net.safetensors", Attention("width").double()).eval()
    assert again.head_dim == 6
    assert_same(model, again)
    with torch.no_grad():
        again.out.weight[:] = small.model.out.weight * (torch.arange(again.out.in_features) % 6 < 2)
        assert_same(again, ds.compact(again, tokens()).model)


def test_rescaled_weights_start_with_fresh_state():
    model = uneven(Attention("width")).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(tokens()).square().mean().backward()
    optimizer.step()
    uneven_again = uneven(model)
    small = ds.compact(uneven_again, tokens())
    state = ds.slice_optimizer(optimizer, uneven_again, small).state
    assert small.model.q.weight not in state
    assert state[small.model.v.weight]["momentum_buffer"].shape == small.model.v.weight.shape


class OfLength(Attention):
    """A scale that depends on more than the width of heads."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = (q @ k.transpose(-2, -1) * (q.shape[-1] + q.shape[-2]) ** -0.5).softmax(-1) @ v
        z: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return x + z


class Turned(Attention):
    """Positions turn pairs of channels, so that their order matters."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        k = k + torch.cat([-k[..., SIZE // 2 :], k[..., : SIZE // 2]], -1)
        z: Tensor = self.out(((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + z


@pytest.mark.parametrize("kind", [OfLength, Turned])
def test_what_cannot_be_made_up_for_stays(kind):
    model = uneven(kind(""))
    small = ds.compact(model, tokens())
    assert small.model.k(tokens()).shape[-1] == HEADS * SIZE
    assert not small.fallbacks
    assert_same(model, small.model)


class Pieces(nn.Module):
    """Queries, keys and values from one layer, values twice as wide, with batch norms, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.key_dim = HEADS, 4
        self.qkv, self.norm = nn.Conv1d(6, HEADS * 16, 1, bias=False), nn.BatchNorm1d(HEADS * 16)
        self.out = nn.Conv1d(HEADS * 8, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.qkv(x)).reshape(len(x), self.heads, -1, x.shape[-1])
        q, k, v = y.split([self.key_dim, self.key_dim, 2 * self.key_dim], 2)
        scores = q.transpose(-2, -1) @ k * self.key_dim**-0.5
        z: Tensor = self.out((v @ scores.softmax(-1).transpose(-2, -1)).flatten(1, 2))
        return z


@pytest.mark.parametrize("shift", [0.0, 0.7])
@pytest.mark.parametrize("fold", [False, True])
def test_pieces_keep_their_proportions(shift, fold):
    model = randomise(Pieces()).double().eval()
    # of each head: dead queries, keys and values
    dead = [[0, 1, 4, 5, 8, 9, 10, 11, 12], [2, 3, 6, 9, 10, 11, 12], [0, 2, 4, 11, 12, 13, 14, 15]]
    with torch.no_grad():
        for head, places in enumerate(dead):
            model.norm.weight[[16 * head + place for place in places]] = 0
            model.norm.bias[[16 * head + place for place in places]] = shift
    small = ds.compact(model, torch.randn(2, 6, 9, dtype=torch.float64), fold=fold)
    assert small.fallbacks == ()
    assert small.model.key_dim == (2 if shift == 0 else 4)
    for length in (5, 9, 10):
        x = torch.randn(3, 6, length, dtype=torch.float64)
        with torch.no_grad():
            assert torch.allclose(model(x), small.model(x), rtol=0, atol=1e-10)


class Insisting(nn.Module):
    """Two heads, as its code says."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 3 * 2 * SIZE), nn.Linear(2 * SIZE, 6)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split(2 * SIZE, -1)
        q, k, v = (part.view(*x.shape[:2], 2, SIZE).transpose(1, 2) for part in parts)
        y = (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v
        z: Tensor = self.out(y.transpose(1, 2).reshape(*x.shape[:2], 2 * SIZE))
        return x + z


def test_a_single_head_stays_whole_if_code_insists_on_heads_elsewhere():
    insisting, single = Insisting(), uneven(Attention("attribute", heads=1), [3], [4])
    model = nn.Sequential(randomise(insisting.double()), single).eval()
    with torch.no_grad():
        insisting.out.weight[:, SIZE:] = 0
    small = ds.compact(model, tokens())
    assert_same(model, small.model)
    assert small.insists_on_heads
    assert not small.fallbacks
    assert small.after.params < small.before.params
