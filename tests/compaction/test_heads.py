"""Networks without batch norm whose neurons, heads and channels died: smaller, exact at fresh sizes, generating."""

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import diffsparse as ds
from diffsparse.gates import named_gates
from diffsparse.nn import GatedLayer
from tests.gating.transformers_zoo import HEADS, ZOO, answer, built

transformers = pytest.importorskip("transformers")


def with_deaths(name: str, seed: int = 0) -> tuple[nn.Module, Any]:
    """A network with half of its units dead, one layer without heads and another one without neurons."""
    model, example = built(name)
    torch.manual_seed(seed)
    ds.sparsify(model, example, compete="layer")
    parts = [module.part("inputs") for module in model.modules() if isinstance(module, GatedLayer)]
    of_kind = Counter[str]()
    for part in parts:
        alive = torch.rand(len(part.gate.alpha)) < 0.5
        alive[seed] = True
        if (part.kind, of_kind[part.kind]) in {("heads", seed), ("neurons", 1 - seed)}:
            alive[:] = False
        of_kind[part.kind] += 1
        part.gate.set_values(part.gate().detach() * alive)
    return model, example


def fresh(example: Any, batch: int, longer: int) -> Any:
    """Other numbers, more samples, and longer sequences or larger images."""
    if isinstance(example, dict):
        return {key: fresh(value, batch, longer) for key, value in example.items()}
    if not isinstance(example, Tensor):
        return example
    if not example.is_floating_point():
        return torch.randint(1, 30, (batch, example.shape[1] + longer))
    if example.dim() == 3:
        return torch.randn(batch, example.shape[1] + longer, example.shape[2], dtype=example.dtype)
    return torch.randn(batch, *example.shape[1:], dtype=example.dtype)


@pytest.mark.filterwarnings("ignore::diffsparse.SparsityWarning")
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_at_fresh_lengths_and_batches(name, seed):
    model, example = with_deaths(name, seed)
    small = ds.compact(model, example)
    assert small.max_difference < 1e-9
    assert small.after.params < 0.95 * small.before.params
    for batch, longer in ((1, -2), (3, 9)):
        x = fresh(example, batch, longer)
        expected = answer(model, x)
        assert torch.allclose(answer(small.model, x), expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.filterwarnings("ignore::diffsparse.SparsityWarning")
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_exact_with_masks(name):
    model, example = with_deaths(name)
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 6:], mask[1, 2:] = 0, 0
    example = {**example, "input_ids": torch.randint(1, 30, (3, 9)), "attention_mask": mask}
    small = ds.compact(model, example)
    turned = {**example, "attention_mask": mask.flip(0), "input_ids": example["input_ids"].flip(1)}
    expected, got = answer(model, turned), answer(small.model, turned)
    assert torch.allclose(got, expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


def dead_heads(name: str, dead: list[int]) -> tuple[nn.Module, ds.Compacted[nn.Module]]:
    """The network with these heads dead in its first layer, gated and compact."""
    model, example = built(name)
    ds.sparsify(model, example, kinds="heads", compete="layer")
    gate = next(gate for _, gate in named_gates(model))
    values = gate().detach()
    values[dead] = 0
    gate.set_values(values)
    return model, ds.compact(model, example)


def test_heads_leave_all_of_attention():
    small = dead_heads("bert", [0, 2])[1]
    attention = small.model.encoder.layer[0].attention
    for layer in (attention.self.query, attention.self.key, attention.self.value):
        assert layer.out_features == 8
        assert not layer._forward_hooks
    assert attention.output.dense.in_features == 8
    assert not attention.output.dense._forward_pre_hooks
    assert small.model.encoder.layer[1].attention.self.query.out_features == 16


def test_sizes_that_the_forward_pass_reads_are_made_true(tmp_path):
    small = dead_heads("gpt2", [1])[1]
    block = small.model.transformer.h[0].attn
    assert block.split_size == 12
    assert block.c_attn.nf == 36
    assert "split_size 16 -> 12" in str(small.plan)
    ds.save(small, tmp_path / "small.safetensors")
    again, example = built("gpt2")
    again = ds.load(tmp_path / "small.safetensors", again)
    assert again.transformer.h[0].attn.split_size == 12
    assert torch.equal(answer(again, example), answer(small.model, example))


def test_query_heads_go_with_their_key_head():
    attention = dead_heads("llama-grouped", [0])[1].model.model.layers[0].self_attn
    assert (attention.q_proj.out_features, attention.k_proj.out_features, attention.v_proj.out_features) == (8, 4, 4)
    assert attention.o_proj.in_features == 8


def test_code_that_insists_on_its_width_keeps_it():
    # the width of a head is computed from that of the stream
    small = dead_heads("nano-gpt", [3])[1]
    assert small.max_difference < 1e-9
    assert small.model.blocks[0].qkv.out_features == 36
    assert small.model.blocks[0].qkv(torch.zeros(1, 1, 16, dtype=torch.float64)).shape[-1] == 48


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-grouped"])
def test_generates_the_same_tokens_with_a_cache(name):
    model, example = with_deaths(name)
    small = ds.compact(model, example).model
    start, options = torch.randint(3, 30, (1, 5)), {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False}
    expected = model.generate(start, attention_mask=torch.ones_like(start), **options)
    assert torch.equal(small.generate(start, attention_mask=torch.ones_like(start), **options), expected)
    assert len(set(expected[0].tolist())) > 3


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama-grouped"])
def test_a_budget_makes_it_small_in_place(name):
    torch.manual_seed(0)
    model, example = built(name, torch.float32)
    ds.sparsify(model.train(), example, start=1.0)
    budget = ds.Budget(model, example, macs=0.6, steps=20)
    optimizer = torch.optim.AdamW(ds.parameter_groups(model), lr=1e-3)
    for _ in range(20):
        output = model(**example)[0]
        loss = output.square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)
    assert budget.finished
    assert 0.5 < budget.cost["macs"] <= 0.6
    again = copy.deepcopy(model)
    assert torch.equal(answer(again.eval(), example), answer(model.eval(), example))
    assert not any(isinstance(module, GatedLayer) for module in model.modules())


def test_heads_that_all_live_stay():
    small = dead_heads("bert", [])[1]
    assert str(small.plan).count("->") == 0
    assert small.model.encoder.layer[0].attention.self.query.out_features == HEADS * 4


class _Grouped(nn.Module):
    """Gives -1 for the number of heads, and takes another way if there are fewer keys than queries."""

    def __init__(self):
        super().__init__()
        self.heads, self.groups, self.size = 2, 2, 4
        self.qkv, self.out = nn.Linear(6, 24, bias=False), nn.Linear(8, 6)

    def forward(self, x):
        sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        parts = self.qkv(x).chunk(3, -1) if self.heads == self.groups else self.qkv(x).split(sizes, -1)
        q, k, v = (part.view(*x.shape[:2], -1, self.size).transpose(1, 2) for part in parts)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_batch_as_large_as_the_number_of_heads_tells_nothing(batch):
    torch.manual_seed(0)
    net = _Grouped().double().eval()
    net.out.weight.data[:, :4] = 0
    small = ds.compact(net, torch.randn(batch, 5, 6, dtype=torch.float64))
    assert not small.fallbacks
    assert not small.insists_on_heads
    assert (small.model.qkv.out_features, small.model.heads, small.model.groups) == (12, 2, 2)
