"""`sparsify` with an example: the function stays, gates carry the importance, mistakes leave the model alone."""

import copy

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.gates import named_gates
from diffsparse.nn import GatedLayer, SparseBatchNorm2d
from tests.gating.transformers_zoo import ZOO, NanoGpt, answer, built

ALL = ("channels", "neurons", "heads", "layers")


@pytest.mark.parametrize("start", [None, 0.5])
@pytest.mark.parametrize("name", ZOO)
def test_the_function_stays(name, start):
    model, example = built(name)
    before = answer(model, example)
    assert ds.sparsify(model, example, kinds=ALL, start=start) is model
    assert torch.allclose(answer(model, example), before, rtol=0, atol=1e-10 * float(before.abs().max()))
    assert any(isinstance(module, GatedLayer) for module in model.modules())


def neurons(scales):
    """A hidden layer whose neurons matter as much as `scales` say."""
    model = nn.Sequential(nn.Linear(4, len(scales)), nn.Tanh(), nn.Linear(len(scales), 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(4).expand(len(scales), 4))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1) * torch.tensor(scales))
    return model


def test_gates_start_at_the_importance_of_an_entry():
    model = ds.sparsify(neurons([1.0, 2.0, 4.0]), torch.randn(16, 4))
    # equal ratios, a mean of 1, and logarithms with a spread of 1, whatever that of the importance is
    start = torch.tensor([-1.0, 0.0, 1.0]).exp()
    assert torch.allclose(model[2].input_gate(), start / start.mean())
    assert torch.allclose(model[2].weight[0], torch.tensor([1.0, 2.0, 4.0]))


def test_an_entry_without_importance_still_lives():
    model = ds.sparsify(neurons([1.0, 0.0]), torch.randn(16, 4))
    assert (model[2].input_gate() > 0).all()
    model = ds.sparsify(neurons([0.0, 0.0]), torch.randn(16, 4))
    assert torch.allclose(model[2].input_gate(), torch.ones(2))


def test_a_number_starts_every_gate_there():
    model, example = built("nano-gpt", torch.float32)
    ds.sparsify(model, example, start=0.5, rgf=0.1)
    for _, gate in named_gates(model):
        assert torch.allclose(gate(), torch.full_like(gate(), 0.5))
        assert gate.rgf == 0.1


@pytest.mark.parametrize(
    ("compete", "sizes"), [("network", {"heads": 8, "neurons": 48}), ("layer", {"heads": 4, "neurons": 24})]
)
def test_who_competes(compete, sizes):
    model, example = built("nano-gpt", torch.float32)
    ds.sparsify(model, example, compete=compete)
    for layer in (module for module in model.modules() if isinstance(module, GatedLayer)):
        assert len(layer.input_gate.gate.alpha) == sizes[layer.input_gate.kind]
    assert len([*named_gates(model)]) == (2 if compete == "network" else 4)


def test_layers_compete_over_the_network():
    model, example = built("nano-gpt", torch.float32)
    ds.sparsify(model, example, kinds="layers", compete="layer")
    ((_, gate),) = named_gates(model)
    assert len(gate.alpha) == 4
    assert [part.start for part in (b.get_submodule(n).output_gate for b in model.blocks for n in ("out", "down"))]


def test_only_and_kinds_choose():
    model, example = built("nano-gpt", torch.float32)
    ds.sparsify(model, example, only="blocks.1", kinds="neurons")
    assert [name for name, module in model.named_modules() if isinstance(module, GatedLayer)] == ["blocks.1.down"]


class Mixed(nn.Module):
    """One convolution reads a batch norm, the other does not."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.b, self.c = nn.Conv2d(6, 8, 3), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.c(self.b(self.norm(self.a(x)).relu()).relu())


def test_batch_norms_get_their_gates_and_readers_of_them_none():
    model, x = Mixed().eval(), torch.randn(2, 3, 8, 8)
    before = model(x)
    ds.sparsify(model, x)
    assert isinstance(model.norm, SparseBatchNorm2d)
    assert not isinstance(model.b, GatedLayer)
    assert isinstance(model.c, GatedLayer)
    assert torch.allclose(model(x), before, atol=1e-6)
    report = ds.gating_report(model)
    assert report.gated == {"norm": "6 channels of a batch norm", "c": "8 channels"}
    assert report.left["b"] == "its inputs come through 'norm', which has gates"
    again = ds.sparsify(ds.sparsify(Mixed(), only="norm"), x)
    assert not isinstance(again.b, GatedLayer)


def test_the_report_prints():
    model, example = built("llama-grouped", torch.float32)
    text = str(ds.gating_report(ds.sparsify(model, example, kinds=ALL)))
    assert "0.self_attn.o_proj  2 heads of 8 inputs, among 4 that compete; the whole layer, among 4 that" in text
    assert "model.layers.1.mlp.down_proj     24 neurons, among 48 that compete" in text
    assert "no gate, other layers read the same tensor: model.layers.0.self_attn.q_proj" in text


def test_sparsity_is_counted_by_layer():
    model, example = built("nano-gpt", torch.float32)
    ds.sparsify(model, example, kinds="heads")
    ((_, gate),) = named_gates(model)
    gate.set_values(torch.tensor([1.0, 0, 1, 0, 0, 0, 0, 0]))
    rows = {row.name: row for row in ds.sparsity(model).gates}
    assert rows["blocks.0.out (heads)"].channels.zero == 2
    assert rows["blocks.1.out (heads)"].dead
    assert ds.sparsity(model).layers.zero == 1


def test_sparsity_is_counted_by_kind():
    model, example = built("nano-gpt", torch.float32)
    ds.sparsify(model, example, start=1.0)
    heads, neurons = (gate for _, gate in named_gates(model))
    assert (heads.kind, neurons.kind) == ("heads", "neurons")
    heads.set_values(torch.tensor([1.0, 0, 1, 0, 0, 0, 0, 0]))
    found = ds.sparsity(model)
    assert {kind: (count.zero, count.total) for kind, count in found.kinds.items()} == {
        "heads": (6, 8),
        "neurons": (0, 48),
    }
    assert "total: heads 6/8 (75.0%), neurons 0/48 (0.0%), layers 1/4" in str(found)


def test_frozen_weights_stay_frozen():
    model, example = built("nano-gpt", torch.float32)
    model.requires_grad_(False)
    ds.sparsify(model, example, kinds="neurons")
    assert {name.rpartition(".")[2] for name, p in model.named_parameters() if p.requires_grad} == {"alpha", "beta"}


class Stubborn(nn.Linear):
    """Does not read its weight by name."""

    def forward(self, x):
        return nn.functional.linear(x, self._parameters["weight"], self.bias)


class Leaving(nn.Module):
    """Its numbers leave torch and come back."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.tensor(self.a(x).tolist()))


def mistakes():
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    return {
        "example": (neurons([1.0, 2.0]), ("a.*",), {}, "the second argument of sparsify is an example"),
        "kinds without example": (neurons([1.0, 2.0]), (), {"kinds": "heads"}, "give an example"),
        "unknown kind": (neurons([1.0, 2.0]), (x,), {"kinds": "edges"}, "kinds must be some of channels, neurons"),
        "no such kind": (neurons([1.0, 2.0]), (x,), {"kinds": ("heads",)}, "its run shows neurons"),
        "nothing at all": (nn.Linear(4, 2), (x,), {}, "no layer reads channels of its own"),
        "no example": (neurons([1.0, 2.0]), (), {}, "give an example of its inputs"),
        "compete": (neurons([1.0, 2.0]), (x,), {"compete": "group"}, "compete must be"),
        "tokens": (NanoGpt(), (torch.full((1, 3), 77),), {}, "does not run on the example.*go up to 77"),
        "shape": (neurons([1.0, 2.0]), (torch.randn(2, 9),), {}, "does not run on the example"),
        "weights": (nn.Sequential(nn.Linear(4, 4), Stubborn(4, 2)), (x,), {}, "does not read its weights as"),
        "not finite": (neurons([1.0, float("nan")]), (x,), {}, r"'2\.weight' of Sequential holds NaN"),
    }


@pytest.mark.parametrize("case", mistakes())
def test_mistakes_leave_the_model_alone(case):
    model, args, options, match = mistakes()[case]
    before, kinds = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    with pytest.raises(ds.SparsityError, match=match):
        ds.sparsify(model, *args, **options)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key].nan_to_num(), after[key].nan_to_num()) for key in before)
    assert [type(module) for module in model.modules()] == kinds


class Unwatchable(nn.Module):
    """Refuses to run while its operations are watched."""

    def forward(self, x):
        if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            raise RuntimeError("no modes, please")
        return x


def test_a_model_that_cannot_be_watched():
    with pytest.raises(ds.SparsityError, match="runs on the example, but not while its operations are watched"):
        ds.sparsify(Unwatchable(), torch.randn(2, 3))


def test_numbers_that_leave_torch_are_followed_no_further():
    x = torch.randn(8, 4)
    with pytest.raises(ds.SparsityError, match="nothing to gate"):
        ds.sparsify(Leaving(), x)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda model, x: x.fill_(torch.nan), {}, "the example holds NaN"),
        (lambda model, x: model[0].weight.data.fill_(torch.nan), {}, r"'0\.weight' of Sequential holds NaN"),
        (lambda model, x: None, {"start": 0}, "start must be neither zero"),
        (lambda model, x: ds.sparsify(model, x), {}, "have gates already"),
    ],
    ids=["example", "weight", "start", "twice"],
)
def test_what_cannot_be_gated_is_said(change, options, message):
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(6, 4)
    change(model, x)
    with pytest.raises(ds.SparsityError, match=message):
        ds.sparsify(model, x, **options)
