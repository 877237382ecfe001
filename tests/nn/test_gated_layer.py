"""A layer of any class whose weights are multiplied by gates."""

import copy
import pickle

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise
from diffsparse.nn import GatedLayer, GatePart, gate_layer


class Transposed(nn.Module):
    """A linear layer whose weight is (inputs, outputs), with a buffer and a setting of its own."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))
        self.register_buffer("seen", torch.tensor(3.0), persistent=False)
        self.scale = 2.0

    def forward(self, x):
        return self.scale * torch.addmm(self.bias, x, self.weight)


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6), 1),
    "no bias": (lambda: nn.Linear(6, 4, bias=False), (3, 6), 1),
    "transposed": (lambda: Transposed(6, 4), (3, 6), 0),
    "convolution": (lambda: nn.Conv2d(6, 4, 3), (3, 6, 5, 5), 1),
    "transposed convolution": (lambda: nn.ConvTranspose1d(6, 4, 3), (3, 6, 5), 0),
}


def gated(make, input_dim, inputs=(1.5, 0.0, -0.5), output=2.0):
    layer = make()
    gate_layer(layer, "inputs", GatePart(ds.SignedGate.from_values(inputs), 0, 3, 2), input_dim=input_dim)
    return gate_layer(layer, "outputs", GatePart(ds.SignedGate.from_values([output, 1.0]), 0, 1), input_dim=input_dim)


@pytest.mark.parametrize("case", LAYERS)
def test_inputs_and_outputs_are_scaled(case):
    torch.manual_seed(0)
    make, shape, input_dim = LAYERS[case]
    plain = make().double()
    layer = gated(lambda: copy.deepcopy(plain), input_dim).double()
    x = torch.randn(shape, dtype=torch.float64)
    a = layer.part("inputs")().view(-1, *[1] * (len(shape) - 2))
    expected = layer.part("outputs")() * plain(x * a)
    assert torch.allclose(layer(x), expected, atol=1e-12)
    assert layer.part("inputs")().tolist()[2:4] == [0, 0]


@pytest.mark.parametrize("case", LAYERS)
def test_the_ordinary_layer_computes_the_same_and_shares_nothing(case):
    make, shape, input_dim = LAYERS[case]
    layer, x = gated(make, input_dim).eval(), torch.randn(shape)
    layer._parameters["weight"].requires_grad_(False)
    ordinary = layer.materialise()
    assert type(ordinary) is type(make())
    assert not ordinary.training
    assert torch.equal(ordinary(x), layer(x))
    assert [*ordinary.state_dict()] == [*make().state_dict()]
    assert not ordinary.weight.requires_grad
    assert {p.data_ptr() for p in ordinary.parameters()}.isdisjoint(p.data_ptr() for p in layer.parameters())
    ordinary.register_forward_hook(print)
    assert not layer._forward_hooks


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(copied):
    shared, x = ds.SignedGate.from_values([1.0, 0.0, 0.5, 2.0]), torch.randn(3, 2)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for i, layer in enumerate(model):
        gate_layer(layer, "inputs", GatePart(shared, 2 * i, 2 * i + 2))
    again = copied(model)
    assert torch.equal(again(x), model(x))
    assert type(again[0]) is type(model[0])
    assert again[0].input_gate.gate is again[1].input_gate.gate is not shared
    assert len([*again.parameters()]) == 6


def test_a_state_goes_into_another_gated_model():
    make, shape, input_dim = LAYERS["linear"]
    one, other = gated(make, input_dim), gated(make, input_dim, inputs=(1.0, 2.0, 3.0), output=1.0)
    other.load_state_dict(one.state_dict())
    x = torch.randn(shape)
    assert torch.equal(one(x), other(x))


def test_gates_stay_wide_in_half_precision():
    layer = gated(lambda: nn.Linear(6, 4), 1).to(torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert layer.input_gate.gate.alpha.dtype == torch.float32
    assert layer(torch.randn(2, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_gradients_reach_weights_and_gates():
    layer = gated(lambda: nn.Linear(6, 4), 1)
    layer(torch.randn(5, 6)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert layer._parameters["weight"].grad[:, 2:4].count_nonzero() == 0


def test_autocast_and_compile():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), gated(lambda: nn.Linear(6, 4), 1))
    x = torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(x)
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), model(x), atol=0.1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), model(x), atol=1e-6)
    compiled(x).sum().backward()
    assert model[2].input_gate.gate.alpha.grad is not None


def test_attention_that_reads_the_weight_itself():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 4, batch_first=True), torch.randn(2, 5, 8)
    plain = copy.deepcopy(attention)
    gate = ds.SignedGate.from_values([1.0, 0.0, 2.0, 1.0])
    gate_layer(attention.out_proj, "inputs", GatePart(gate, 0, 4, 2))
    plain.out_proj.weight.data.mul_(attention.out_proj.input_gate())
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            assert torch.allclose(attention.train(mode)(x, x, x)[0], plain.train(mode)(x, x, x)[0], atol=1e-6)


def test_hooks_are_kept():
    seen = []
    layer = nn.Linear(6, 4)
    layer.register_forward_hook(lambda *_: seen.append("user"))
    model = nn.Sequential(gated(lambda: layer, 1))
    model(torch.randn(2, 6))
    materialise(model)(torch.randn(2, 6))
    assert seen == ["user", "user"]


def test_a_weight_may_be_replaced():
    layer = gated(lambda: nn.Linear(6, 4), 1)
    layer.weight = nn.Parameter(torch.zeros(4, 6))
    assert layer(torch.zeros(1, 6)).shape == (1, 4)
    assert layer.weight.count_nonzero() == 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: GatePart(ds.SignedGate(3), 1, 4), "no part of a gate"),
        (lambda: GatePart(ds.SignedGate((2, 3)), 0, 2), "no part of a gate"),
        (lambda: gate_layer(nn.Linear(5, 2), "inputs", GatePart(ds.SignedGate(2), 0, 2, 2)), "needs 5 channels, got 4"),
        (lambda: gate_layer(nn.Linear(5, 2), "outputs", GatePart(ds.SignedGate(2), 0, 2)), "needs 1 channels, got 2"),
    ],
)
def test_parts_that_do_not_fit(make, match):
    with pytest.raises(ds.SparsityError, match=match):
        make()


def test_is_a_gated_layer_and_still_a_linear_one():
    layer = gated(lambda: nn.Linear(6, 4), 1)
    assert isinstance(layer, GatedLayer)
    assert isinstance(layer, nn.Linear)
