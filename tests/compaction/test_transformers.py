"""Networks without batch norm, gated by an example, with half of everything dead: exact, and no larger than is live."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise
from diffsparse.nn import GatedLayer
from tests.compaction.architectures.trial import compared, macs
from tests.compaction.oracle import live_macs
from tests.gating.subjects import SUBJECTS

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::diffsparse.SparsityWarning")

# a norm over the hidden units binds them all, so that only whole branches can go
WHOLE_BRANCHES = {"ConvNeXtV2"}
# the code of these names the width of the stream or shares a bias of all heads: products keep their size
LAYERS_ONLY = {"nanoGPT": "takes the width of its heads from that of its input", "T5": "one bias for all layers"}


def half_dead(name: str, seed: int = 0) -> nn.Module:
    """The network with gates: half of each layer dead, one layer without heads, another one without neurons."""
    subject = SUBJECTS[name]
    model = subject.made(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter)
    kinds = "layers" if name in WHOLE_BRANCHES else None
    ds.sparsify(model, subject.inputs(100), compete="layer", kinds=kinds)
    kill_half(model)
    return model


def kill_half(model: nn.Module) -> None:
    """Half of each gate, the first one for heads and the second one for neurons as a whole."""
    of_kind = Counter[str]()
    for layer in [module for module in model.modules() if isinstance(module, GatedLayer)]:
        part = layer.part("inputs") or layer.part("outputs")
        alive = torch.rand(len(part.gate.alpha)) < 0.5
        alive[0] = len(alive) > 1 or of_kind[part.kind] % 2
        if (part.kind, of_kind[part.kind]) in {("heads", 0), ("neurons", 1)}:
            alive[:] = False
        of_kind[part.kind] += 1
        part.gate.set_values(part.gate().detach() * alive)


@pytest.mark.parametrize("name", SUBJECTS)
def test_exact_and_as_small_as_what_is_live(name):
    subject, model = SUBJECTS[name], half_dead(name)
    example, plain = subject.inputs(100), materialise(model).eval()
    small = ds.compact(model, example)
    assert small.max_difference < 1e-9
    assert compared(subject, model, small.model) == ""
    live = live_macs(plain, subject.inputs)
    if name in LAYERS_ONLY:
        assert small.after.layer_macs <= 1.05 * (live.live - products(plain, live.by_module))
    else:
        assert macs(small.model, example) <= 1.05 * live.live
    assert macs(small.model, example) < 0.8 * macs(plain, example)


def products(model: nn.Module, by_module: Counter[str]) -> int:
    """Live products in modules without weights of their own: those of attention."""
    named = dict(model.named_modules())
    return sum(count for name, count in by_module.items() if not any(True for _ in named[name]._parameters.values()))


def generated(model: Any, start: torch.Tensor, **options: Any) -> torch.Tensor:
    mask = torch.ones_like(start)
    return model.generate(start, attention_mask=mask, max_new_tokens=64, min_new_tokens=64, do_sample=False, **options)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Llama, grouped queries"])
def test_generates_the_same_64_tokens_with_a_cache(name):
    model = half_dead(name)
    small = ds.compact(model, SUBJECTS[name].inputs(100)).model
    start = torch.randint(3, 30, (2, 5), generator=torch.Generator().manual_seed(1))
    expected = generated(model.model, start, use_cache=True)
    assert expected.shape == (2, 69)
    assert len(set(expected.flatten().tolist())) > 5
    assert torch.equal(generated(small.model, start, use_cache=True), expected)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "nn.TransformerEncoder"])
def test_files(name, tmp_path):
    small = ds.compact(half_dead(name), SUBJECTS[name].inputs(100))
    ds.save(small, tmp_path / "small.safetensors")
    again = ds.load(tmp_path / "small.safetensors", SUBJECTS[name].made(3)).eval()
    assert compared(SUBJECTS[name], small.model, again) == ""


@pytest.mark.parametrize(("name", "layers"), [("BERT", "bert.encoder.layer"), ("GPT-2", "transformer.h")])
def test_onnx_with_any_batch_and_length(name, layers, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = half_dead(name).float()
    # the exporter takes its time for each layer, and the last one has live heads and live neurons
    held = model.model.get_submodule(layers)
    del held[:2]
    small = ds.compact(model.model, {"input_ids": torch.randint(3, 30, (2, 7)), **no_cache(name)})
    path, example = tmp_path / "small.onnx", {"input_ids": torch.randint(3, 30, (2, 7))}
    assert ds.export_onnx(small, example, path, dynamic=(0, 1)) < 1e-4
    ids = torch.randint(3, 30, (5, 12))
    (got,) = onnxruntime.InferenceSession(str(path)).run(None, {"input_ids": ids.numpy()})
    with torch.no_grad():
        expected = small.model(input_ids=ids).logits
    assert torch.allclose(torch.from_numpy(got), expected, atol=1e-4 * float(expected.abs().max()))


def no_cache(name: str) -> dict[str, bool]:
    return {} if name == "BERT" else {"use_cache": False}
