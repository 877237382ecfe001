"""The padded batch of gates: the values and gradients of each gate alone, nothing from the padding."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsparse import SignedGate, SimplexGate
from diffsparse.penalties.penalty import GateBatch, batch_gates


def random_gates(sizes, seed=0, rgf=None):
    generator = torch.Generator().manual_seed(seed)
    gates = [SignedGate(n, rgf=rgf, dtype=torch.float64) for n in sizes]
    for gate in gates:
        gate.alpha.detach().normal_(generator=generator)
        gate.beta.detach().add_(3 * torch.rand((), generator=generator, dtype=torch.float64))
    return gates


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 10**6), st.sampled_from([None, 0.1]))
def test_rows_are_the_gates_followed_by_zeros(sizes, seed, rgf):
    gates = random_gates(sizes, seed, rgf)
    rows = GateBatch(gates).rows()
    assert rows.shape == (len(sizes), max(sizes))
    upstream = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    alone = sum((gate() * upstream[i, :n]).sum() for i, (gate, n) in enumerate(zip(gates, sizes, strict=True)))
    for i, (gate, n) in enumerate(zip(gates, sizes, strict=True)):
        torch.testing.assert_close(rows[i, :n], gate())
        assert (rows[i, n:] == 0).all()
    parameters = [p for gate in gates for p in gate.parameters()]
    # the padding gets an upstream gradient too, and must pass none of it on
    together = torch.autograd.grad((rows * upstream).sum(), parameters)
    for mine, expected in zip(together, torch.autograd.grad(alone, parameters), strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_gate_of_several_dimensions_is_one_row():
    gate = SignedGate((2, 3), dim=(0, 1))
    gate.alpha.detach().copy_(torch.tensor([[1.0, 0.01, -0.7], [0.02, 0.9, 0.03]]))
    (batch,), single = batch_gates([gate, SignedGate(8)])
    assert not single
    torch.testing.assert_close(batch.rows()[0, :6], gate().flatten())


def test_rows_read_the_parameters_of_now():
    (gate,) = random_gates([4])
    batch = GateBatch([gate])
    before = batch.rows()
    gate.alpha.detach().mul_(2)
    torch.testing.assert_close(batch.rows(), 2 * before)


def test_gates_are_sorted_by_what_they_share():
    class Own(SignedGate):
        pass

    plain, other = SignedGate(3), SignedGate(5)
    rectified, wide = SignedGate(3, rgf=0.1), SignedGate(3, dtype=torch.float64)
    alone = [SignedGate((2, 3)), SimplexGate(3), Own(3)]
    batches, single = batch_gates([alone[0], plain, rectified, alone[1], wide, other, alone[2]])
    assert [batch.gates for batch in batches] == [[plain, other], [rectified], [wide]]
    assert single == alone


def test_no_gates_make_no_batch():
    assert batch_gates([]) == ([], [])
