"""Files of models with gated layers."""

import pytest
import torch

import diffsparse as ds
from diffsparse.gates import named_gates
from tests.gating.transformers_zoo import answer, built


@pytest.mark.parametrize("name", ["nano-gpt", "gpt2", "convolutions", "llama-grouped"])
@pytest.mark.parametrize("fresh", ["plain", "gated"])
def test_gated_layers_come_back(name, fresh, tmp_path):
    model, example = built(name)
    ds.sparsify(model, example, kinds=("channels", "neurons", "heads", "layers") if name != "convolutions" else None)
    for _, gate in named_gates(model):
        gate.set_values(torch.rand_like(gate.alpha).where(torch.rand_like(gate.alpha) < 0.7, 0.0))
    ds.save(model, tmp_path / "gated.safetensors")
    other, _ = built(name)
    other = ds.sparsify(other, example, start=0.5, compete="network") if fresh == "gated" else other
    again = ds.load(tmp_path / "gated.safetensors", other)
    assert torch.equal(answer(again, example), answer(model, example))
    assert str(ds.sparsity(again)) == str(ds.sparsity(model))
    assert again.state_dict().keys() == model.state_dict().keys()


def test_a_compact_model_comes_back_into_a_fresh_one(tmp_path):
    model, example = built("gpt2")
    ds.sparsify(model, example)
    for _, gate in named_gates(model):
        gate.set_values(gate().detach() * (torch.arange(len(gate.alpha)) % 2))
    small = ds.compact(model, example)
    ds.save(small, tmp_path / "small.safetensors")
    again = ds.load(tmp_path / "small.safetensors", built("gpt2")[0])
    assert torch.equal(answer(again, example), answer(small.model, example))


def test_a_gate_that_does_not_fit_the_layer(tmp_path):
    model, example = built("nano-gpt")
    ds.save(ds.sparsify(model, example), tmp_path / "gated.safetensors")
    other, _ = built("nano-gpt")
    other.blocks[0].down = torch.nn.Linear(10, 16)
    with pytest.raises(ds.CheckpointError, match="needs 10 channels"):
        ds.load(tmp_path / "gated.safetensors", other)
