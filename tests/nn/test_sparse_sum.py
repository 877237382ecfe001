"""The gated sum: its value, its gradient, and which components run."""

import pytest
import torch
from torch import nn

from diffsparse import MatrixGate, SignedGate, SimplexGate, SparseSum, SparsityError, compact

GATES = {
    "simplex": lambda rgf=None: SimplexGate.from_values(torch.tensor([0.7, 0.0, 0.3], dtype=torch.float64), rgf=rgf),
    "signed": lambda rgf=None: SignedGate.from_values(torch.tensor([0.5, 0.0, -1.2], dtype=torch.float64), rgf=rgf),
}
each_gate = pytest.mark.parametrize("make", GATES.values(), ids=GATES)


def linears(count=3):
    torch.manual_seed(0)
    return [nn.Linear(4, 2, dtype=torch.float64) for _ in range(count)]


def x():
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def count_calls(module):
    calls = [0] * len(module.components)

    def hook(i):
        def add(*_):
            calls[i] += 1

        return add

    for i, component in enumerate(module.components):
        component.register_forward_hook(hook(i))
    return calls


@each_gate
@pytest.mark.parametrize("train", [True, False])
def test_value_is_the_weighted_sum(make, train):
    components, gate = linears(), make()
    weights = gate().tolist()
    expected = sum(w * (x() @ f.weight.T + f.bias) for w, f in zip(weights, components, strict=True))
    torch.testing.assert_close(SparseSum(components, gate).train(train)(x()), expected)


@each_gate
def test_eval_skips_what_training_runs(make):
    mix = SparseSum(linears(), make())
    calls = count_calls(mix)
    mix(x())
    assert calls == [1, 1, 1]
    mix.eval()(x())
    assert calls == [2, 1, 2]


def test_starts_as_the_mean():
    components = linears()
    expected = torch.stack([f(x()) for f in components]).mean(0)
    torch.testing.assert_close(SparseSum(components)(x()), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", [SimplexGate, SignedGate])
def test_all_dropped_gives_zeros(kind, train):
    mix = SparseSum(linears(), kind(3)).train(train)
    mix.gate.beta.detach().fill_(5)
    y = mix(x())
    assert y.shape == (5, 2)
    assert y.dtype == torch.float64
    assert (y == 0).all()


@each_gate
@pytest.mark.parametrize("train", [True, False])
def test_gradcheck(make, train):
    mix = SparseSum(linears(), make()).train(train)
    names = [name for name, _ in mix.named_parameters()]

    def call(*parameters):
        return torch.func.functional_call(mix, dict(zip(names, parameters, strict=True)), (x(),))

    parameters = [p.detach().clone().requires_grad_() for p in mix.parameters()]
    assert torch.autograd.gradcheck(call, parameters)


@each_gate
def test_rectified_flow_reaches_a_dropped_component_in_training(make):
    gradients = []
    for rgf in (None, 0.1):
        mix = SparseSum(linears(), make(rgf))
        mix(x()).square().sum().backward()
        gradients.append(mix.gate.alpha.grad[1].item())
    assert gradients[0] != pytest.approx(gradients[1], rel=1e-3)


def test_arguments_reach_the_components():
    class Scale(nn.Module):
        def forward(self, x, *, by):
            return by * x

    mix = SparseSum([Scale(), Scale()], SignedGate.from_values([0.25, 0.5]))
    torch.testing.assert_close(mix(torch.ones(3), by=4.0), torch.full((3,), 3.0))


def test_half_precision_components_keep_their_dtype():
    mix = SparseSum([nn.Identity(), nn.Identity()])
    assert mix(torch.ones(3, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("train", [True, False])
def test_compiles(train):
    mix = SparseSum(linears(), GATES["signed"]()).train(train)
    compiled = torch.compile(mix, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x()), mix(x()))


def test_refuses_mistakes():
    with pytest.raises(SparsityError, match="at least one component"):
        SparseSum([])
    for gate in (SimplexGate(2), SignedGate((3, 1)), MatrixGate(3)):
        with pytest.raises(SparsityError, match=r"one entry per component, shape \(3,\), got \("):
            SparseSum(linears(), gate)
    with pytest.raises(SparsityError, match="must be a SimplexGate or SignedGate, got tensor"):
        SparseSum(linears(1), torch.ones(1))
    with pytest.raises(SparsityError, match=r"component 1 of a SparseSum must be a torch\.nn\.Module, got 3"):
        SparseSum([nn.Identity(), 3])


@pytest.mark.parametrize("train", [True, False])
def test_refuses_outputs_of_different_shapes(train):
    mix = SparseSum([nn.Linear(4, 2), nn.Linear(4, 1)]).train(train)
    with pytest.raises(SparsityError, match=r"component 1 gives \(5, 1\), those before it \(5, 2\)"):
        mix(torch.randn(5, 4))


def test_a_component_that_is_there_twice_counts_twice_after_compaction():
    shared = nn.Linear(3, 3)
    mix = SparseSum([shared, shared, nn.Linear(3, 3)], SignedGate.from_values([0.5, 0.3, 0.2])).eval()
    model, x = nn.Sequential(mix), torch.randn(4, 3)
    torch.testing.assert_close(compact(model, x).model(x), model(x))
