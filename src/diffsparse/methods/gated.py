"""Differentiable sparsification, the method of this package, in the form the training loop wants."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.budget import Budget
from diffsparse.budget.budget import DUE
from diffsparse.budget.regulariser import BudgetPressure
from diffsparse.compaction import Compacted
from diffsparse.errors import SparsityError
from diffsparse.gates import named_gates
from diffsparse.gating import Count, sparsify, sparsity
from diffsparse.methods.costs import asked_costs
from diffsparse.methods.method import COSTS, STEERING, Method, Sample, check_auto, register_method
from diffsparse.methods.scales import batch_norms
from diffsparse.methods.settings import Sparsifying
from diffsparse.penalties import L1, Norm, Penalty, Regulariser
from diffsparse.penalties.strength import Pace


@dataclass(frozen=True, kw_only=True)
class Gated(Method):
    """Gates with learned thresholds: those that the model brings itself, or on every batch norm; without batch norms,
    wherever a run shows that heads, neurons or channels can be removed.

    Either a `Budget` steers them to a cost and makes the model small on the way, or the paper's penalty of a lambda
    makes zeros. `Sparsifying` describes the fields, which are options of the same names.
    """

    macs: float | None = None
    params: float | None = None
    bytes: float | None = None
    latency: float | None = None
    due: float = DUE
    strength: float = 0.0
    norm: Norm = field(default_factory=L1)
    start: float = 0.5
    rgf: float | None = None
    budget: Budget | None = field(default=None, repr=False, compare=False)
    """Made by `fitted`, as is the next."""
    entries: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Entries of all gates, by what they stand for."""

    options = COSTS | STEERING | {"latency", "due", "norm", "group_size", "start", "rgf", "target"}
    instead_of_cost = STEERING | {"norm", "group_size", "target"}

    @classmethod
    def check(cls, settings: Sparsifying) -> None:
        super().check(settings)
        if cls.costs(settings):
            return
        check_auto(settings, settings.norm)
        if "due" in settings.given():
            raise SparsityError(f"due={settings.due:g} says when a cost is reached, and there is none to reach")

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        costs = cls.costs(settings)
        return cls(
            macs=costs.get("macs"),
            params=costs.get("params"),
            bytes=costs.get("bytes"),
            latency=costs.get("latency"),
            strength=settings.number,
            norm=settings.chosen_norm(),
            start=(1.0 if costs else 0.5) if settings.start is None else settings.start,
            rgf=settings.rgf,
            due=settings.due,
        )

    @classmethod
    def with_strength(cls, settings: Sparsifying, pace: Pace) -> Sparsifying:
        return settings if cls.costs(settings) else super().with_strength(settings, pace)

    @property
    def shrinks(self) -> bool:  # type: ignore[override]
        """Whether gates leave the model while it trains."""
        return bool(asked_costs(self))

    def prepare(self, model: nn.Module, sample: Sample | None = None) -> nn.Module:
        if any(True for _ in named_gates(model)):
            return model
        # networks of the paper keep their gates where the paper has them
        example = None if sample is None or batch_norms(model) else sample()
        # gates of a fresh network start alike, so nothing tells yet which of its layers matter less than others
        return sparsify(model, example, compete="layer", start=self.start, rgf=self.rgf)

    def fitted(self, model: nn.Module, example: Tensor, steps: int) -> Method:
        if not self.shrinks:
            return self
        costs = {"macs": self.macs, "params": self.params, "bytes": self.bytes, "latency": self.latency}
        budget = Budget(model, example, steps=steps, due=self.due, **costs)  # type: ignore[arg-type]
        entries = {kind: count.total for kind, count in sparsity(model).kinds.items()}
        return replace(self, budget=budget, entries=entries)

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser:
        if self.budget is not None:
            return BudgetPressure(self.budget, optimizer)
        return Penalty(model, self.norm, self.strength)

    def zeros_by_kind(self, model: nn.Module) -> dict[str, Count]:
        """Gate entries that are zero or have left the model."""
        if self.budget is None:
            return super().zeros_by_kind(model)
        if self.budget.finished:
            alive = self.budget.history[-1].kinds
        else:
            alive = {kind: count.total - count.zero for kind, count in sparsity(model).kinds.items()}
        return {kind: Count(zero=total - alive.get(kind, 0), total=total) for kind, total in self.entries.items()}

    def figures(self, model: nn.Module) -> dict[str, Any]:
        if self.budget is None:
            return {}
        return {f"{name}_share": share for name, share in self.budget.cost.items()}

    def to_save(self, model: nn.Module) -> nn.Module | Compacted[nn.Module]:
        return model if self.budget is None else self._small(self.budget, model)

    def compacted(self, model: nn.Module, fresh: nn.Module, example: Tensor) -> Compacted[nn.Module]:
        return super().compacted(model, fresh, example) if self.budget is None else self._small(self.budget, model)

    def _small(self, budget: Budget, model: nn.Module) -> Compacted[nn.Module]:
        """`model`, which was trained on after it became small: nothing is left to compare it with."""
        return replace(budget.small, model=model, max_difference=None)


register_method("ds", Gated)
