"""Gates evaluated: sparse layers become ordinary ones that compute the same."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise
from diffsparse.gates import Source
from diffsparse.gates.gate import StoredGate
from diffsparse.nn import SparseBatchNorm
from diffsparse.nn.sparse_sum import WeightedSum
from tests.compaction.nets import same
from tests.compaction.tiny import OTHER, X, tiny

KINDS = {
    ds.SparseBatchNorm1d: (nn.BatchNorm1d, (4, 6, 5)),
    ds.SparseBatchNorm2d: (nn.BatchNorm2d, (4, 6, 3, 3)),
    ds.SparseBatchNorm3d: (nn.BatchNorm3d, (4, 6, 2, 2, 2)),
    SparseBatchNorm: (nn.SyncBatchNorm, (4, 6, 3)),
}


def trained(norm: SparseBatchNorm, shape: tuple[int, ...]) -> SparseBatchNorm:
    """A sparse batch norm that has seen a batch and whose numbers are no defaults."""
    norm.double().train()(3 * torch.randn(shape).double() + 1)
    norm.gate.alpha.data = torch.tensor([0.9, -0.4, 0.0, 0.7, -1.2, 0.01]).double()
    if norm.bias is not None:
        norm.bias.data = torch.randn(6).double()
    return norm.eval()


def apart(a: nn.Module, b: nn.Module, x: Tensor) -> float:
    return float((a(x) - b(x)).detach().abs().max())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ordinary_class_computes_the_same(kind: type[SparseBatchNorm], affine: bool) -> None:
    ordinary, shape = KINDS[kind]
    sparse = trained(kind(6, eps=1e-3, momentum=0.2, affine=affine), shape)
    plain = materialise(sparse)
    assert type(plain) is ordinary
    assert (plain.eps, plain.momentum) == (1e-3, 0.2)
    assert apart(sparse, plain, torch.randn(shape).double()) < 1e-12
    assert torch.equal(plain.running_var, sparse.running_var)
    assert int(plain.num_batches_tracked) == 1


def test_without_running_statistics() -> None:
    sparse = ds.SparseBatchNorm2d(6, track_running_stats=False).double().eval()
    plain = materialise(sparse)
    assert plain.running_mean is None
    assert apart(sparse, plain, torch.randn(4, 6, 3, 3).double()) < 1e-12


def test_an_absent_shift_is_zero_and_not_trained() -> None:
    plain = materialise(ds.SparseBatchNorm2d(6, affine=False))
    assert plain.bias.eq(0).all()
    assert not plain.bias.requires_grad
    assert plain.weight.requires_grad


def test_what_was_frozen_stays_frozen() -> None:
    sparse = ds.SparseBatchNorm2d(6)
    sparse.requires_grad_(False)
    plain = materialise(sparse)
    assert not plain.weight.requires_grad
    assert not plain.bias.requires_grad


def test_statistics_that_were_synchronised_are_taken_over() -> None:
    model = nn.Sequential(trained(ds.SparseBatchNorm2d(6), (4, 6, 3, 3)))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).eval()
    assert type(model[0].statistics).__name__ == "SyncStatistics"
    plain = materialise(model)
    assert type(plain[0]) is nn.BatchNorm2d
    assert torch.equal(plain[0].running_mean, model[0].running_mean)
    assert apart(model, plain, torch.randn(4, 6, 3, 3).double()) < 1e-12


def test_a_copy_is_made_and_the_mode_is_kept() -> None:
    model = nn.Sequential(ds.SparseBatchNorm2d(6), nn.ReLU())
    model[0].eval()
    plain = materialise(model)
    assert type(model[0]) is ds.SparseBatchNorm2d
    assert plain.training
    assert not plain[0].training
    plain[0].running_mean.add_(1)
    assert model[0].running_mean.eq(0).all()


def test_a_layer_held_twice_is_held_twice_afterwards() -> None:
    shared = ds.SparseBatchNorm2d(6)
    plain = materialise(nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared)))
    assert plain[0] is plain[2][0]


def test_a_sum_becomes_a_weighted_sum() -> None:
    mix = ds.SparseSum([nn.Linear(3, 2), nn.Linear(3, 2)], ds.SignedGate.from_values([0.5, -2.0])).double().eval()
    plain = materialise(nn.Sequential(mix))
    assert type(plain[0]) is WeightedSum
    assert torch.allclose(plain[0].weights.detach(), torch.tensor([0.5, -2.0]).double(), atol=1e-6)
    assert apart(mix, plain, torch.randn(5, 3).double()) < 1e-12


def test_sums_within_sums() -> None:
    inner = ds.SparseSum([nn.Linear(3, 3), ds.SparseSum([nn.Linear(3, 3), nn.Identity()])])
    mix = ds.SparseSum([inner, nn.Identity()]).double().eval()
    plain = materialise(mix)
    assert not [m for m in plain.modules() if isinstance(m, ds.SparseSum)]
    assert apart(mix, plain, torch.randn(5, 3).double()) < 1e-12


def test_half_precision() -> None:
    sparse = ds.SparseBatchNorm2d(6).bfloat16().eval()
    assert materialise(sparse).weight.dtype == torch.bfloat16


def test_what_stands_for_a_module_runs_in_eval_mode_whatever_mode_it_was_made_in() -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

        def materialise(self) -> nn.Module:
            return copy.deepcopy(self.norm).train()

        def parameter_sources(self) -> dict[str, Source]:
            return {key: Source(f"norm.{key}", keeps_state=True) for key in ("weight", "bias")}

    model = tiny(Computed(), dead=[0, 1]).eval()
    small = ds.compact(model, X).model
    assert not any(module.training for module in small.modules())
    assert same(model, small, OTHER)


def test_a_layer_of_a_sum_that_is_held_in_front_of_it_too() -> None:
    shared = ds.SparseBatchNorm1d(3)
    model = nn.Sequential(shared, ds.SparseSum([shared, nn.Identity()])).double().eval()
    plain = materialise(model)
    assert type(plain[0]) is nn.BatchNorm1d
    assert plain[1].components[0] is plain[0]
    assert apart(model, plain, torch.randn(5, 3).double()) < 1e-12


def test_flags_of_components_are_left_alone() -> None:
    mix = ds.SparseSum([nn.Dropout(), nn.Identity()])
    mix.components[0].eval()
    plain = materialise(mix)
    assert (plain.training, plain.components[0].training, mix.components[0].training) == (True, False, False)


def test_a_frozen_sum_stays_frozen() -> None:
    mix = ds.SparseSum([nn.Identity(), nn.Identity()])
    mix.gate.requires_grad_(False)
    assert not materialise(mix).weights.requires_grad


def test_a_subclass_with_a_forward_of_its_own_is_refused() -> None:
    class Shifted(ds.SparseBatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    class Renamed(ds.SparseBatchNorm1d):
        pass

    with pytest.raises(ds.SparsityError, match=r"Shifted has a forward of its own.*materialise\(\) of its own"):
        materialise(nn.Sequential(Shifted(3)))
    assert type(materialise(Renamed(3))) is nn.BatchNorm1d


GATES = {
    "signed": ds.SignedGate.from_values([0.5, 0.0, -0.25]),
    "simplex": ds.SimplexGate.from_values([0.75, 0.25, 0.0]),
    "matrix": ds.MatrixGate.from_values([[0.5, 0.0], [0.0, 0.25]]),
}


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_a_gate_that_stands_alone_stores_its_values(gate: nn.Module) -> None:
    stored = materialise(nn.ModuleDict({"gate": gate}))["gate"]
    assert type(stored) is StoredGate
    assert torch.equal(stored(), gate())
    assert [name for name, _ in stored.named_parameters()] == ["values"]
    assert stored.values.requires_grad
    stored.half()
    assert stored.values.dtype == torch.float32
    assert stored.double().values.dtype == torch.float64


def test_a_frozen_gate_in_eval_mode() -> None:
    gate = ds.SignedGate(3).requires_grad_(False).eval()
    stored = materialise(gate)
    assert not stored.values.requires_grad
    assert not stored.training


def test_an_adjacency_stays_as_it_is() -> None:
    adjacency = ds.SparseAdjacency(3)
    plain = materialise(adjacency)
    assert type(plain) is ds.SparseAdjacency
    assert plain is not adjacency
    assert torch.equal(plain(), adjacency())


def test_a_gate_that_its_layer_consumes_is_not_evaluated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, forward = [], ds.SignedGate.forward
    monkeypatch.setattr(ds.SignedGate, "forward", lambda self: calls.append(self) or forward(self))
    materialise(nn.Sequential(ds.SparseBatchNorm1d(3), ds.SparseSum([nn.Identity()], ds.SignedGate(1))))
    assert len(calls) == 2


class Computed(nn.Module):
    """A module whose ordinary form is made by a function."""

    def __init__(self, inner: nn.Module, form: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.inner, self.form = inner, form

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def materialise(self) -> nn.Module:
        return self.form(self.inner)

    def parameter_sources(self) -> dict[str, Source]:
        return {}


def same_weight(inner: nn.Module) -> nn.Module:
    plain = nn.Linear(3, 3, bias=False)
    plain.weight = inner.weight
    return plain


def same_memory(inner: nn.Module) -> nn.Module:
    plain = nn.Linear(3, 3, bias=False)
    plain.weight = nn.Parameter(inner.weight.detach())
    return plain


@pytest.mark.parametrize("form", [lambda inner: inner, same_weight, same_memory, nn.Sequential])
def test_an_ordinary_form_that_shares_weights_is_copied(form: Callable[[nn.Module], nn.Module]) -> None:
    inner = nn.Linear(3, 3, bias=False)
    plain = materialise(Computed(inner, form))
    with torch.no_grad():
        next(plain.parameters()).zero_()
    assert inner.weight.ne(0).all()


def test_an_ordinary_form_that_is_gated_itself() -> None:
    assert type(materialise(Computed(ds.SparseBatchNorm1d(3), lambda inner: inner))) is nn.BatchNorm1d
    assert type(materialise(Computed(nn.ReLU(), lambda _: ds.SignedGate(3)))) is StoredGate


def test_a_wrong_ordinary_form_is_an_error() -> None:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = nn.Linear(4, 3), ds.SignedGate.from_values([0.5, 0.0, 0.25])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gate() * self.linear(x)

        def materialise(self) -> nn.Module:
            return self.linear

        def parameter_sources(self) -> dict[str, Source]:
            return {"weight": Source("linear.weight"), "bias": Source("linear.bias")}

    model = nn.Sequential(Forgetful(), nn.Linear(3, 2))
    with pytest.raises(ds.SparsityError, match=r"copy of Sequential with evaluated gates gives another function"):
        ds.compact(model, torch.randn(2, 4))
    assert model.training
