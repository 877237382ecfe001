"""Where a run of the model shows that gates can go."""

from collections import Counter

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.example import Example
from diffsparse.gating.probe import block_size
from diffsparse.gating.sites import find_sites
from tests.gating.transformers_zoo import HEADS, NEURONS, ZOO, NanoGpt, built, llama

UNITS = {
    "nano-gpt": {("heads", HEADS, 4): 2, ("neurons", NEURONS, 1): 2, ("layers", 1, 1): 4},
    "encoder": {("heads", HEADS, 4): 2, ("neurons", NEURONS, 1): 2, ("layers", 1, 1): 4},
    "convolutions": {("channels", 4, 2): 1, ("channels", 12, 1): 1, ("neurons", 6, 1): 1},
    "bert": {("heads", HEADS, 4): 2, ("neurons", NEURONS, 1): 2, ("layers", 1, 1): 4},
    "gpt2": {("heads", HEADS, 4): 2, ("neurons", NEURONS, 1): 2, ("layers", 1, 1): 4},
    "llama": {("heads", HEADS, 4): 2, ("neurons", NEURONS, 1): 2, ("layers", 1, 1): 4},
    "llama-grouped": {("heads", 2, 8): 2, ("neurons", NEURONS, 1): 2, ("layers", 1, 1): 4},
    "t5": {("heads", HEADS, 4): 6, ("neurons", NEURONS, 1): 4, ("layers", 1, 1): 10},
    "vit": {("heads", HEADS, 4): 2, ("neurons", NEURONS, 1): 2, ("layers", 1, 1): 4},
    "convnext": {("neurons", 32, 1): 2, ("neurons", 64, 1): 2, ("layers", 1, 1): 4},
}


@pytest.mark.parametrize("name", ZOO)
def test_units_that_are_found(name):
    model, example = built(name, torch.float32)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    sites = find_sites(model, Example.of(example))
    assert Counter((site.kind, site.entries, site.block) for site in sites.found) == UNITS[name]
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_one_key_head_for_all_queries_does_not_bind_them():
    torch.manual_seed(0)
    model, example = llama(1)
    found = find_sites(model.eval(), Example.of(example)).found
    assert {(site.entries, site.block) for site in found if site.kind == "heads"} == {(HEADS, 4)}


def test_reasons_for_the_rest():
    model, example = built("nano-gpt", torch.float32)
    left = find_sites(model, Example.of(example)).left
    assert "other layers read" in left["blocks.1.up"]
    assert "belong to another layer" in left["embed"]


def test_a_cache_that_is_returned_keeps_heads():
    model, example = built("gpt2", torch.float32)
    sites = find_sites(model, Example.of(example | {"use_cache": True}))
    assert {site.kind for site in sites.found} == {"neurons", "layers"}
    assert "use_cache=False" in sites.left["transformer.h.0.attn.c_proj"]


def test_a_branch_in_parallel_to_another():
    class Parallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.a, self.b, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            normed = self.norm(x)
            return self.last(self.a(normed) + self.b(normed) + x)

    sites = find_sites(Parallel(), Example.of(torch.randn(3, 8)))
    assert {site.layer for site in sites.found if site.kind == "layers"} == {"a", "b"}


@pytest.mark.parametrize(
    ("channels", "reached", "expected"),
    [
        (8, {"q": [[0, 1, 2, 3], [4, 5, 6, 7]], "v": [[2]]}, 4),
        (8, {"up": [[3], [7]]}, 1),
        (8, {"norm": [[0, 1, 2, 3, 4, 5, 6, 7]]}, None),
        (8, {"key": [[0, 1, 2, 3, 4, 5, 6, 7]], "query": [[0, 1], [6, 7]]}, 2),
        (8, {"shifted": [[1, 2], [3, 4]]}, None),
        (8, {"uneven": [[0, 1, 2]]}, None),
        (8, {"unread": [[]]}, None),
    ],
)
def test_block_size(channels, reached, expected):
    assert block_size(channels, reached) == expected


def test_gates_are_not_put_twice():
    model, example = built("nano-gpt", torch.float32)
    ds.sparsify(model, example, kinds="heads")
    ds.sparsify(model, example)
    assert str(ds.gating_report(model)).count("heads") == 2
    with pytest.raises(ds.SparsityError, match="nothing to gate"):
        ds.sparsify(model, example)


def test_weights_in_a_container_that_is_not_a_layer():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(8, 2))

        def forward(self, x):
            return (x @ self.up).relu() @ self.down

    assert not find_sites(Own(), Example.of(torch.randn(3, 4))).found


def test_nothing_is_read_in_a_model_without_layers():
    assert find_sites(nn.Identity(), Example.of(torch.randn(2, 3))).found == []


def test_the_training_mode_is_restored():
    model = NanoGpt().train()
    find_sites(model, Example.of(torch.randint(30, (2, 5))))
    assert all(module.training for module in model.modules())


def test_weights_that_are_used_turned_round():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.bias = nn.Linear(12, 8), nn.Parameter(torch.zeros(12))

        def forward(self, x):
            return nn.functional.linear(self.encode(x).relu(), self.encode.weight.t(), self.bias)

    with pytest.raises(ds.SparsityError, match=r"'encode': its weights are also used turned round \(weight.t\(\)\)"):
        ds.sparsify(Tied(), torch.randn(2, 12))
