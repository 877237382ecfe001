"""`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` with dead heads and dead inputs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.plan import Plan
from diffsparse.compaction.slim_attention import SlimAttention

WIDTH, HEADS = 16, 4
FORMS = {
    "plain": {},
    "sequence first": {"batch_first": False},
    "no bias": {"bias": False},
    "extra keys": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 12, "vdim": 10},
}


class Attends(nn.Module):
    """Attention between two sequences, or within one, in front of a layer."""

    def __init__(self, returns: bool = False, **options: Any) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **options})
        self.last, self.returns = nn.Linear(WIDTH, 3), returns

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **masks: Any) -> Any:
        y, weights = self.attend(query, key, value, **masks)
        y = self.last(query + y)
        return (y, weights) if self.returns else y


def kill_heads(attend: nn.MultiheadAttention, dead: list[int]) -> None:
    """As gates in front of the output projection do."""
    with torch.no_grad():
        for parameter in attend.parameters():
            nn.init.normal_(parameter, std=0.5)
        attend.out_proj.weight.view(WIDTH, HEADS, -1)[:, dead] = 0


def made(dead: list[int], **options: Any) -> Attends:
    torch.manual_seed(0)
    model = Attends(**options).double().eval()
    kill_heads(model.attend, dead)
    return model


def inputs(options: dict[str, Any], batch: int, length: int, other: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    widths = (WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH))
    sizes = [(batch, n) if options.get("batch_first", True) else (n, batch) for n in (length, other, other)]
    return [
        torch.randn(*size, width, generator=generator, dtype=torch.float64)
        for size, width in zip(sizes, widths, strict=True)
    ]


def assert_same(model: nn.Module, small: nn.Module, *given: Any, **masks: Any) -> None:
    with torch.no_grad():
        expected, got = model(*given, **masks), small(*given, **masks)
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dead", [[1, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_heads_leave(options, dead):
    model = made(dead, **options)
    small = ds.compact(model, tuple(inputs(options, 2, 5, 7)))
    attend = small.model.attend
    assert attend.num_heads == HEADS - len(dead)
    assert attend.out_proj.weight.shape == (WIDTH, 4 * attend.num_heads)
    assert all(entry.layer != "attend" for entry in small.kept)
    for batch, length, other in ((1, 1, 1), (3, 4, 9)):
        assert_same(model, small.model, *inputs(options, batch, length, other, 1))


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("weights", [False, True])
def test_masks_of_every_kind(options, weights):
    model = made([0, 2], **options)
    small = ds.compact(model, tuple(inputs(options, 2, 5, 7))).model
    given = inputs(options, 3, 4, 6, 1)
    late = torch.zeros(3, 6, dtype=torch.bool)
    late[1, 4:] = True
    causal, own = torch.ones(4, 6).triu(1).bool(), torch.randn(3 * HEADS, 4, 6, dtype=torch.float64)
    for masks in (
        {"key_padding_mask": late},
        {"attn_mask": causal},
        {"attn_mask": own},
        {"attn_mask": causal, "key_padding_mask": late},
        {"attn_mask": own, "key_padding_mask": late.double()},
    ):
        assert_same(model, small, *given, need_weights=weights, **masks)


def test_a_hint_of_causality():
    model = made([0])
    given = inputs({}, 2, 6, 6)
    small = ds.compact(model, tuple(given)).model
    future = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    assert_same(model, small, *given, attn_mask=future, is_causal=True, need_weights=False)


def test_one_sequence_without_a_batch():
    model = made([1])
    small = ds.compact(model, tuple(inputs({}, 2, 5, 7))).model
    assert_same(model, small, *(x[0] for x in inputs({}, 1, 4, 6)))


def test_weights_that_are_read_keep_all_heads():
    model = made([0, 1], returns=True)
    small = ds.compact(model, tuple(inputs({}, 2, 5, 7)))
    with torch.no_grad():
        expected, got = (net(*inputs({}, 3, 4, 6)) for net in (model, small.model))
    assert torch.allclose(got[1], expected[1])
    assert torch.allclose(got[0], expected[0])


def test_inputs_that_are_zero_leave():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(WIDTH)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attends = norm, Attends()

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
            return self.attends(x, x, x)

    model = Net().double().eval()
    norm.weight.data[:6] = 0
    small = ds.compact(model, inputs({}, 2, 5, 5)[0])
    assert small.model.attends.attend.in_proj_weight.shape == (3 * WIDTH, WIDTH - 6)
    assert "queries from 10" in str(small.plan)
    assert_same(model, small.model, inputs({}, 3, 4, 4, 1)[0])
    y, weights = small.model.attends.attend(*inputs({}, 2, 4, 6), average_attn_weights=False)
    assert weights.shape == (2, HEADS, 4, 6)
    assert y.shape == (2, 4, WIDTH)


def test_hooks_stay_and_shared_modules_are_left_alone():
    model = made([0])
    seen = []
    model.attend.register_forward_hook(lambda module, args, output: seen.append(output[0].shape))
    given = inputs({}, 2, 5, 5)
    small = ds.compact(model, tuple(given)).model
    seen.clear()
    small(*given)
    assert len(seen) == 1
    twice = nn.Sequential()
    twice.first, twice.second = made([0]), made([0])
    twice.second.attend = twice.first.attend
    twice.forward = lambda q, k, v: twice.first(q, k, v) + twice.second(q, k, v)
    assert type(ds.compact(twice, tuple(given)).model.first.attend) is nn.MultiheadAttention


def encoder(norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=not norm_first).double().eval()
    for number, layer in enumerate(model.layers):
        kill_heads(layer.self_attn, [[0, 2], [], [0, 1, 2, 3]][number])
    return model


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoders_lose_heads(norm_first, tmp_path):
    model = encoder(norm_first)
    small = ds.compact(model, torch.randn(2, 5, WIDTH, dtype=torch.float64))
    assert [layer.self_attn.num_heads for layer in small.model.layers] == [2, 4, 0]
    x, late = torch.randn(3, 9, WIDTH, dtype=torch.float64), torch.zeros(3, 9, dtype=torch.bool)
    late[0, 6:] = True
    assert_same(model, small.model, x)
    assert_same(model, small.model, x, mask=torch.ones(9, 9).triu(1).bool())
    # of padding, torch's own kernels return zeros, and its layers do not
    expected, got = model(x, src_key_padding_mask=late), small.model(x, src_key_padding_mask=late)
    assert torch.allclose(got[~late], expected[~late], atol=1e-12)
    ds.save(small, tmp_path / "small.safetensors")
    again = ds.load(tmp_path / "small.safetensors", encoder(norm_first))
    assert_same(small.model, again, x)
    assert Plan.from_json(small.plan.to_json()) == small.plan


def test_compact_once_more():
    model = encoder()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    small = ds.compact(model, x)
    with torch.no_grad():
        small.model.layers[0].self_attn.out_proj.weight[:, :4] = 0
    smaller = ds.compact(small.model, x)
    attend = smaller.model.layers[0].self_attn
    assert isinstance(attend, SlimAttention)
    assert attend.num_heads == 1
    assert attend.head_index.tolist() == [3]
    own = torch.randn(3 * HEADS, 9, 9, dtype=torch.float64)
    x = torch.randn(3, 9, WIDTH, dtype=torch.float64)
    expected, got = (net.layers[0].self_attn(x, x, x, attn_mask=own)[0] for net in (small.model, smaller.model))
    assert torch.allclose(got, expected, atol=1e-12)


def test_training_goes_on():
    model = encoder().train()
    small = ds.compact(model, torch.randn(2, 5, WIDTH, dtype=torch.float64)).model
    small(torch.randn(2, 5, WIDTH, dtype=torch.float64)).sum().backward()
    grad = small.layers[0].self_attn.in_proj_weight.grad
    assert grad.shape == (24, WIDTH)
    assert bool(grad.any())


def test_the_budget_shrinks_it_in_place():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(4, 5, WIDTH)
    ds.sparsify(model, x, kinds="heads", start=1.0)
    budget = ds.Budget(model, x, macs=0.7, steps=20)
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        (model(x).square().mean() + budget.penalty()).backward()
        optimizer.step()
        budget.step(optimizer)
    assert budget.finished
    assert sum(layer.self_attn.num_heads for layer in model.layers) < 2 * HEADS
    assert budget.cost["macs"] <= 0.7


class NormsFirst(nn.Module):
    """Layer norms whose dead channels emit their shift, in front of attention."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attends = Attends(**options)

    def forward(self, *given: Tensor) -> Tensor:
        y: Tensor = self.attends(*(norm(x) for norm, x in zip(self.norms, given, strict=True)))
        return y


@pytest.mark.parametrize("same", [True, False], ids=["within", "between"])
@pytest.mark.parametrize("form", ["plain", "sequence first", "no bias", "extra keys"])
def test_constant_inputs_go_into_the_bias(form: str, same: bool) -> None:
    torch.manual_seed(0)
    model = NormsFirst(**FORMS[form]).double().eval()
    kill_heads(model.attends.attend, [1])
    with torch.no_grad():
        for number, norm in enumerate(model.norms):
            norm.bias.normal_()
            norm.weight[: 5 + number] = 0
        if same:
            model.norms[1] = model.norms[2] = model.norms[0]
    small = ds.compact(model, tuple(inputs(FORMS[form], 2, 5, 5)))
    # with a bias, the constants that queries, keys and values have in common leave
    assert small.model.attends.attend.in_proj_weight.shape == (3 * 12, WIDTH if form == "no bias" else WIDTH - 5)
    for batch, length, other in ((1, 7, 7), (3, 4, 6)):
        given = inputs(FORMS[form], batch, length, other, seed=1)
        assert torch.allclose(model(*given), small.model(*given), rtol=0, atol=1e-10)
