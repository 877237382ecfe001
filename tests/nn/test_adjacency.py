"""The learned adjacency: its value against loops, masks, death, the penalty it gets and what training does to it."""

import copy
import functools
import math

import pytest
import torch

import diffsparse as ds
from diffsparse.functional import balanced_limit, balanced_normalize
from diffsparse.nn import SparseAdjacency

F64 = torch.float64
BALANCES = {"fixed": balanced_normalize, "limit": functools.partial(balanced_limit, tolerance=1e-12)}
each_balance = pytest.mark.parametrize("balance", BALANCES.values(), ids=BALANCES)


def loop(adjacency, iterations=20):
    """Thresholds and balancing written out from the paper's formulas, over the allowed entries only."""
    n = adjacency.nodes
    allowed = [[adjacency.mask is None or bool(adjacency.mask[i, j]) for j in range(n)] for i in range(n)]
    alpha = adjacency.alpha.tolist()
    gamma = [[math.exp(alpha[i][j]) if allowed[i][j] else 0.0 for j in range(n)] for i in range(n)]
    matrix = [list(row) for row in gamma]
    if adjacency.beta_row is not None:
        row, col = (
            [1 / (1 + math.exp(-b)) for b in beta.tolist()] for beta in (adjacency.beta_row, adjacency.beta_col)
        )
        for i in range(n):
            for j in range(n):
                reach = row[i] * sum(gamma[i]) + col[j] * sum(gamma[k][j] for k in range(n))
                matrix[i][j] = max(gamma[i][j] - reach, 0.0)
    for _ in range(iterations):
        rows = [sum(line) or 1.0 for line in matrix]
        cols = [sum(line[j] for line in matrix) or 1.0 for j in range(n)]
        matrix = [[matrix[i][j] / math.sqrt(rows[i] * cols[j]) for j in range(n)] for i in range(n)]
    return torch.tensor(matrix, dtype=F64)


def random_adjacency(n=6, seed=0, **settings):
    torch.manual_seed(seed)
    adjacency = SparseAdjacency(n, dtype=F64, **settings)
    for parameter, mean, spread in ((adjacency.alpha, 0.5, 1.0), (adjacency.beta_row, -1.5, 0.5)):
        if parameter is not None:
            parameter.detach().normal_(mean, spread)
    return adjacency


def ring_mask(n=6):
    i = torch.arange(n)
    return ((i.unsqueeze(0) - i.unsqueeze(1)) % n) <= 1


def gradients(adjacency):
    weights = torch.randn(adjacency.nodes, adjacency.nodes, generator=torch.Generator().manual_seed(5))
    (adjacency() * weights).sum().backward()
    return {name: parameter.grad for name, parameter in adjacency.named_parameters()}


def test_start_is_uniform_up_to_the_noise():
    torch.manual_seed(0)
    adjacency = SparseAdjacency(170)
    assert adjacency.beta_row.tolist() == adjacency.beta_col.tolist() == pytest.approx([-10.2774] * 170, abs=1e-4)
    assert adjacency.alpha.std().item() == pytest.approx(0.01, rel=0.02)
    gamma = adjacency.alpha.detach().exp()
    kept = ds.functional.matrix_threshold(adjacency.alpha, adjacency.beta_row, adjacency.beta_col).detach()
    assert (kept / gamma).mean().item() == pytest.approx(0.988, abs=5e-4)
    torch.testing.assert_close(adjacency().detach(), torch.full((170, 170), 1 / 170), rtol=0.1, atol=0)


def test_start_follows_torchs_random_numbers():
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(SparseAdjacency(4).alpha.detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not SparseAdjacency(4, noise=0.0).alpha.any()


@pytest.mark.parametrize("threshold", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_value_is_the_formula(masked, threshold):
    adjacency = random_adjacency(mask=ring_mask() if masked else None, threshold=threshold)
    expected = loop(adjacency)
    torch.testing.assert_close(adjacency().detach(), expected)
    zeros = int((expected == 0).sum())
    assert zeros == (24 if masked else 0) if not threshold else zeros > (24 if masked else 0)


def test_two_nodes_by_hand():
    """gamma = [[4, 1], [1, 1]], both fractions 1/8: the corner keeps 4 - 5/8 - 5/8, all else at most 1/8."""
    adjacency = SparseAdjacency(2, balance=functools.partial(balanced_normalize, iterations=1), dtype=F64)
    adjacency.alpha.data = torch.tensor([[4.0, 1.0], [1.0, 1.0]], dtype=F64).log()
    for beta in (adjacency.beta_row, adjacency.beta_col):
        beta.data.fill_(-math.log(7))
    kept = torch.tensor([[2.75, 1 - 7 / 8], [1 - 7 / 8, 1 / 2]], dtype=F64)
    sums = kept.sum(1)
    torch.testing.assert_close(adjacency().detach(), kept / (sums.unsqueeze(1) * sums).sqrt())


def test_the_scale_of_gamma_does_not_matter_and_cannot_overflow():
    adjacency = random_adjacency()
    expected = adjacency().detach()
    adjacency.alpha.detach().add_(2000.0)
    torch.testing.assert_close(adjacency().detach(), expected)


@each_balance
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("threshold", [True, False])
def test_gradcheck(threshold, masked, balance):
    adjacency = random_adjacency(4, 3, mask=ring_mask(4) if masked else None, threshold=threshold, balance=balance)
    names = [name for name, _ in adjacency.named_parameters()]

    def call(*parameters):
        return torch.func.functional_call(adjacency, dict(zip(names, parameters, strict=True)), ())

    assert torch.autograd.gradcheck(call, [p.detach().clone().requires_grad_() for p in adjacency.parameters()])


@pytest.mark.parametrize("rgf", [None, 0.1])
def test_entries_outside_the_mask_take_no_part(rgf):
    adjacency = random_adjacency(mask=ring_mask(), rgf=rgf)
    before, slopes = adjacency().detach(), gradients(adjacency)
    assert not slopes["alpha"][~adjacency.mask].any()
    assert slopes["alpha"][adjacency.mask].any()
    adjacency.alpha.detach()[~adjacency.mask] = 50.0
    adjacency.zero_grad()
    assert torch.equal(adjacency(), before)
    for name, slope in gradients(adjacency).items():
        assert torch.equal(slope, slopes[name])


def test_mask_is_a_copy_and_part_of_the_state():
    mask = ring_mask()
    adjacency = SparseAdjacency(6, mask=mask)
    mask.fill_(True)
    assert int(adjacency.mask.sum()) == 12
    assert set(adjacency.state_dict()) == {"alpha", "beta_row", "beta_col", "mask"}
    with pytest.raises(RuntimeError, match="mask"):
        SparseAdjacency(6).load_state_dict(adjacency.state_dict())


@pytest.mark.parametrize("rgf", [None, 0.1])
def test_no_gradient_comes_from_entries_outside_the_mask(rgf):
    adjacency = random_adjacency(mask=ring_mask(), rgf=rgf)
    adjacency().backward((~adjacency.mask).to(F64))
    assert not any(parameter.grad.any() for parameter in adjacency.parameters())


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("threshold", [True, False])
def test_plain_form_has_no_thresholds_and_zeros_only_outside_the_mask(threshold, masked):
    adjacency = SparseAdjacency(6, threshold=threshold, mask=ring_mask() if masked else None)
    assert [name for name, _ in adjacency.named_parameters()] == ["alpha", "beta_row", "beta_col"][
        : 3 if threshold else 1
    ]
    assert int(adjacency().count_nonzero()) == (12 if masked else 36)
    assert ("no thresholds" in repr(adjacency)) is not threshold


def kill(adjacency, *, rows=(), columns=()):
    for i in rows:
        adjacency.beta_row.detach()[i] = 5.0
    for j in columns:
        adjacency.beta_col.detach()[j] = 5.0
    return adjacency


@each_balance
@pytest.mark.parametrize(
    ("rows", "columns"), [([1], []), ([], [2]), ([1], [2]), ([3], [3]), (range(6), []), (range(6), range(6))]
)
@pytest.mark.parametrize("rgf", [None, 0.1])
def test_dead_rows_and_columns_stay_apart_with_finite_numbers(rows, columns, rgf, balance):
    adjacency = kill(random_adjacency(rgf=rgf, balance=balance), rows=rows, columns=columns)
    a = adjacency().detach()
    assert a.isfinite().all()
    assert not a[list(rows)].any()
    assert not a[:, list(columns)].any()
    assert bool(a.any()) is (len(rows) < 6)
    penalty = ds.Penalty(adjacency, norm=ds.Lp(0.5), strength=1.0)()
    penalty.backward()
    assert penalty.isfinite()
    for slope in gradients(adjacency).values():
        assert slope.isfinite().all()


def test_a_mask_with_an_empty_row_isolates_the_node():
    mask = ring_mask()
    mask[2] = False
    adjacency = random_adjacency(mask=mask)
    assert not adjacency()[2].any()
    assert all(slope.isfinite().all() for slope in gradients(adjacency).values())


@pytest.mark.parametrize("threshold", [True, False])
def test_penalty_acts_on_rows_and_columns_of_the_normalised_matrix(threshold):
    adjacency = random_adjacency(threshold=threshold, mask=ring_mask())
    a = adjacency().tolist()
    by_hand = 0.0
    for group in [*a, *zip(*a, strict=True)]:
        by_hand += sum(math.sqrt(entry) for entry in group) ** 2 / 2
    penalty = ds.Penalty(adjacency, norm=ds.Lp(0.5), strength=0.01)()
    assert penalty.item() == pytest.approx(0.01 * by_hand)
    penalty.backward()
    assert adjacency.alpha.grad.isfinite().all()


def test_is_a_gate_for_everything_that_looks_for_gates():
    model = torch.nn.ModuleDict({"graph": SparseAdjacency(6, mask=ring_mask()), "layer": torch.nn.Linear(2, 2)})
    assert [len(group["params"]) for group in ds.parameter_groups(model)] == [2, 3]
    (row,) = ds.sparsity(model).gates
    assert (row.name, row.channels.zero) == ("graph", 24)


def test_state_and_copies_give_the_same_matrix():
    adjacency = random_adjacency(mask=ring_mask())
    other = random_adjacency(seed=9, mask=~ring_mask())
    other.load_state_dict(adjacency.state_dict())
    for twin in (other, copy.deepcopy(adjacency)):
        assert torch.equal(twin(), adjacency())
    twin.alpha.detach().zero_()
    assert not torch.equal(twin(), adjacency())


def test_halving_a_model_and_autocast_leave_it_in_float32():
    torch.manual_seed(0)
    adjacency = SparseAdjacency(6, mask=ring_mask(), noise=1.0)
    expected = adjacency()
    assert adjacency.half().alpha.dtype == torch.float32
    assert adjacency.mask.dtype == torch.bool
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            assert torch.equal(adjacency(), expected)


def test_compiles_to_one_graph():
    adjacency = random_adjacency(mask=ring_mask(), rgf=0.1, balance=functools.partial(balanced_normalize, iterations=2))
    compiled = torch.compile(adjacency, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), adjacency())


@pytest.mark.parametrize("balance", [balanced_normalize, balanced_limit])
def test_training_finds_the_zeros_of_a_graph(balance):
    """Every node mixes itself and its successor; the learned pattern has these and little else."""
    torch.manual_seed(0)
    truth = (torch.eye(6) + torch.eye(6).roll(1, 1)) / 2
    adjacency = SparseAdjacency(6, balance=balance)
    penalty = ds.Penalty(adjacency, norm=ds.Lp(0.5), strength=2e-3)
    optimizer = torch.optim.Adam(adjacency.parameters(), lr=0.05)
    for _ in range(100):
        x = torch.randn(6, 16)
        loss = ((adjacency() - truth) @ x).square().mean() + penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    a = adjacency().detach()
    assert (a[truth > 0] > 0.2).all()
    assert int((a == 0).sum()) >= 20


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SparseAdjacency(1), "nodes must be a whole number of at least 2, got 1"),
        (lambda: SparseAdjacency(2.5), "nodes must be a whole number of at least 2, got 2.5"),
        (lambda: SparseAdjacency(3, noise=-1.0), "noise must.*got -1.0"),
        (lambda: SparseAdjacency(3, rgf=-1.0), "rgf must.*got -1.0"),
        (lambda: SparseAdjacency(3, balance=20), "balance must be a function.*got 20"),
        (lambda: SparseAdjacency(3, mask=torch.ones(3, 3)), "tensor of bools, got torch.float32"),
        (lambda: SparseAdjacency(3, mask=[[True]]), "tensor of bools, got list"),
        (lambda: SparseAdjacency(3, mask=torch.ones(3, 4, dtype=torch.bool)), r"shape \(3, 3\), got \(3, 4\)"),
        (lambda: SparseAdjacency(3, mask=torch.ones(2, 2, dtype=torch.bool)), r"shape \(3, 3\), got \(2, 2\)"),
        (lambda: SparseAdjacency(3, mask=torch.zeros(3, 3, dtype=torch.bool)), "at least one entry, got none"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(ds.SparsityError, match=message):
        build()
