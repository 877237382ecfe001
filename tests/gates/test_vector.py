"""Gates over groups along any dimensions: shapes of beta, views of groups."""

import itertools

import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.gates.vector import VectorGate


class OpenGate(VectorGate):
    """Its values are its parameters."""

    def forward(self):
        return self.alpha

    def _solve(self, rows):
        return rows, rows.new_zeros(len(rows))


def test_needs_a_forward():
    with pytest.raises(TypeError, match="abstract"):
        VectorGate(3)


@pytest.mark.parametrize(
    ("size", "dim", "beta_shape", "group_size"),
    [
        (5, -1, (), 5),
        ((2, 3, 4), -1, (2, 3), 4),
        ((2, 3, 4), 0, (3, 4), 2),
        ((2, 3, 4), (0, -1), (3,), 8),
        ((2, 3, 4), (1, 0, 2), (), 24),
        (torch.Size([2, 3]), 1, (2,), 3),
    ],
)
def test_one_beta_a_group(size, dim, beta_shape, group_size):
    gate = OpenGate(size, dim=dim)
    assert tuple(gate.beta.shape) == beta_shape
    assert gate.group_size == group_size
    torch.testing.assert_close(gate.beta.sigmoid(), torch.full(beta_shape, 1 / (group_size**2 + group_size)))
    assert gate.alpha.requires_grad
    assert gate.beta.requires_grad
    assert gate.beta.is_leaf


def test_groups_are_rows_of_competitors():
    values = torch.arange(24).reshape(2, 3, 4)
    for dims in [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]:
        (rows,) = OpenGate((2, 3, 4), dim=dims).groups(values)
        outer = [d for d in range(3) if d not in dims]
        for row, place in zip(rows, itertools.product(*(range(values.shape[d]) for d in outer)), strict=True):
            index = tuple(place[outer.index(d)] if d in outer else slice(None) for d in range(3))
            assert row.tolist() == values[index].flatten().tolist()


@pytest.mark.parametrize("dim", [0, 1, -1, (0, 2), (2, 1), (0, 1, 2)])
def test_set_groups_undoes_groups(dim):
    torch.manual_seed(0)
    gate, source = OpenGate((2, 3, 4), dim=dim), torch.randn(2, 3, 4)
    parameters = list(gate.parameters())
    (rows,) = gate.groups(source)
    beta = torch.arange(float(len(rows)))
    gate.set_groups(rows.double(), beta.double())
    assert torch.equal(gate.alpha, source)
    assert torch.equal(gate.beta.flatten(), beta)
    assert all(a is b for a, b in zip(gate.parameters(), parameters, strict=True))
    assert gate.alpha.dtype == torch.float32


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (0, {}, "every dimension of size=0 must be a whole number of at least 1, got 0"),
        (-2, {}, "size=-2"),
        ((), {}, r"size=\(\)"),
        ((3, 0), {"dim": 0}, r"size=\(3, 0\)"),
        (3, {"dim": 1}, r"dim=1 is out of range for alpha of shape \(3,\)"),
        ((2, 3), {"dim": -3}, "dim=-3 is out of range"),
        ((2, 3), {"dim": (1, -1)}, r"dim=\(1, -1\) names a dimension of alpha twice"),
        ((2, 3), {"dim": ()}, r"at least one dimension.*dim=\(\)"),
        (3, {"rgf": -1.0}, "got -1.0"),
    ],
)
def test_wrong_arguments(size, options, message):
    with pytest.raises(SparsityError, match=message):
        OpenGate(size, **options)
