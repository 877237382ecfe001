"""An output layer that shares its weight with a table of embeddings, behind a norm with dead channels."""

import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.borrowed import PartOfLinear


class Tied(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20, bias=bias)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.embed(ids)))
        return y


def half_dead(count: int, **options: bool) -> Tied:
    torch.manual_seed(0)
    model = Tied(**options).double().eval()
    with torch.no_grad():
        model.norm.bias.normal_()
        model.norm.weight[:count] = 0
    return model


def assert_same(model: nn.Module, small: nn.Module) -> None:
    ids = torch.randint(20, (3, 9))
    with torch.no_grad():
        assert torch.allclose(model(ids), small(ids), rtol=0, atol=1e-12)


def test_uses_a_part_and_stays_tied(tmp_path):
    for bias in (False, True):
        model = half_dead(6, bias=bias)
        ids = torch.randint(20, (2, 5))
        small = ds.compact(model, ids)
        assert small.model.head.weight is small.model.embed.weight
        assert small.after.macs == 2 * 5 * 10 * 20
        assert "in 16 -> 10" in str(small.plan)
        assert "part of a shared weight" in str(small.plan)
        assert_same(model, small.model)
        ds.save(small, tmp_path / "small.safetensors")
        again = ds.load(tmp_path / "small.safetensors", Tied(bias=bias))
        assert again.head.weight is again.embed.weight
        assert_same(small.model, again.eval())


def test_not_for_a_few_channels():
    small = ds.compact(half_dead(1), torch.randint(20, (2, 5)))
    assert type(small.model.head) is nn.Linear
    assert small.after.macs == small.before.macs


def test_trains_the_whole_weight():
    small = ds.compact(half_dead(6), torch.randint(20, (2, 5))).model
    assert isinstance(small.head, PartOfLinear)
    small(torch.randint(20, (2, 5))).square().sum().backward()
    grad = small.embed.weight.grad
    assert grad.shape == (20, 16)
    assert bool(grad[:, :6].any())


def test_hooks_and_a_second_compaction():
    model = half_dead(6)
    seen = []
    model.head.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[-1]))
    ids = torch.randint(20, (2, 5))
    small = ds.compact(model, ids)
    seen.clear()
    small.model(ids)
    assert seen == [16]
    assert_same(small.model, ds.compact(small.model, ids).model)


def test_a_layer_without_live_inputs_keeps_the_weight_for_others():
    model = half_dead(16)
    forward = model.forward
    model.forward = lambda ids: forward(ids) + model.embed(ids) @ model.head.weight.t()
    small = ds.compact(model, torch.randint(20, (2, 5)))
    assert small.fallbacks == ()
    assert_same(model, small.model)


class ReadsItsWeight(nn.Module):
    """Code outside of a layer reads the whole weight of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.second(self.norm(self.first(x)))) * self.second.weight.norm()
        return y


def test_a_layer_whose_weight_is_read_computes_less_and_keeps_the_weight():
    torch.manual_seed(0)
    model = ReadsItsWeight().double().eval()
    with torch.no_grad():
        model.norm.weight[:10], model.norm.bias[:10], model.last.weight[:, :12] = 0, 0, 0
    small = ds.compact(model, torch.randn(2, 8, dtype=torch.float64))
    assert small.model.second.weight.shape == (16, 16)
    assert small.after.macs == 2 * (8 * 6 + 6 * 4 + 4 * 4)
    x = torch.randn(5, 8, dtype=torch.float64)
    assert torch.allclose(model(x), small.model(x), rtol=0, atol=1e-12)
