"""`Budget`: half the MACs, please."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.budget.cost_model import METRICS, CostModel
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.shrink import shrink_in_place
from diffsparse.compaction import Compacted, compact
from diffsparse.compaction.materialise import check_model
from diffsparse.errors import SparsityError, SparsityWarning, require_number, require_whole
from diffsparse.example import Example
from diffsparse.gates import chosen_gates
from diffsparse.gating import warn_of_idle_gates
from diffsparse.selection import Selection

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]

PRESSURE = 4e-4
"""Lambda of the pressure on thresholds, before it is multiplied by `strength`."""
FLOOR = 0.05
"""Least weight of a group, as a share of the mean: what costs next to nothing is hardly pushed."""


@dataclass(frozen=True)
class Look:
    """What a look at the gates has seen."""

    step: int
    cost: dict[str, float]
    """MACs, parameters and bytes as shares of the whole network's."""
    wanted: float
    """Where the ramp of the cost is, as a share."""
    alive: int
    """Entries that live."""


class Budget:
    """Steers the gates of a model to a cost, in any training loop, then makes model and optimiser small in place.

    A pressure on the thresholds alone, weighted by what an entry costs, lets the loss decide which entries survive.
    Every few steps the budget looks at the cost and shifts all thresholds by a common amount, so that the cost follows
    a ramp that ends at the number you asked for after the share `due` of all steps. Then the network becomes small,
    and the rest of the run trains it without any pressure.

    Args:
        model: a gated model.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        macs, params, bytes: what the network may cost: a share of the whole one (above 0, at most 1) or, above 1, a
            number. If several are given, all hold.
        steps: how often `step` will be called in the whole run.
        due: the share of the steps after which the cost is reached.
        only: the gates to steer, chosen as for a `Penalty`.
        every: steps between looks.
        strength: how strong the pressure is, as a multiple of the default.

    Example:
        >>> import diffsparse as ds
        >>> model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
        >>> model, x = ds.sparsify(model, start=0.5), torch.randn(64, 8)
        >>> budget = Budget(model, x[:2], macs=0.5, steps=40)
        >>> optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
        >>> for _ in range(40):
        ...     loss = F.cross_entropy(model(x), (x[:, 0] > 0).long()) + budget.penalty()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     _ = budget.step(optimizer)
        >>> model[0].out_features, budget.cost["macs"]
        (16, 0.5)
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any,
        *,
        macs: float | None = None,
        params: float | None = None,
        bytes: float | None = None,
        steps: int,
        due: float = 0.3,
        only: Selection | None = None,
        every: int = 10,
        strength: float = 1.0,
    ) -> None:
        self.model = check_model(model)
        self.example = Example.of(example_inputs)
        self.steps = require_whole("steps", steps, low=1)
        self.due = require_number("due", due, above=0, high=1)
        self.every = require_whole("every", every, low=1)
        self.strength = require_number("strength", strength, low=0)
        self._entries = GateEntries(chosen_gates(self.model, only))
        self._costs = CostModel(self.model, self.example, self._entries)
        self._limits = self._checked_limits({"macs": macs, "params": params, "bytes": bytes})
        self._step = 0
        self._essential: set[int] = set()
        self._may_be_empty: frozenset[int] = frozenset()
        self._small: Compacted[Any] | None = None
        self.history: list[Look] = []
        """Every look, the first to the last."""
        self._weights = self._group_weights(self._entries.alive())
        self._warned = False

    def _checked_limits(self, given: dict[str, float | None]) -> Numbers:
        asked = {name: value for name, value in given.items() if value is not None}
        if not asked:
            raise SparsityError(f"a budget needs a cost: give one of {', '.join(f'{name}=' for name in METRICS)}")
        limits = np.full(len(METRICS), np.inf)
        least = self._costs.cost(np.zeros(self._entries.count, bool))
        for name, value in asked.items():
            metric = METRICS.index(name)
            number = require_number(name, value, above=0)
            limits[metric] = number * self._costs.whole[metric] if number <= 1 else number
            if limits[metric] < least[metric]:
                share = least[metric] / self._costs.whole[metric]
                raise SparsityError(
                    f"{name}={value:g} cannot be reached: with every gate closed {type(self.model).__name__} still has "
                    f"{share:.1%} of its {name}, in layers without gates"
                )
        return limits

    # What the loop calls --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the budget has been reached and the model is small."""
        return self._small is not None

    @property
    def small(self) -> Compacted[Any] | None:
        """What `compact` returned when the model became small; its `model` is then the model itself."""
        return self._small

    def penalty(self) -> Tensor:
        """The term to add to the loss: a scalar, zero once the budget is reached."""
        gates = self._entries.gates.values()
        place = next(iter(gates)).beta.device
        if self.finished:
            return torch.zeros((), device=place)
        betas = torch.cat([gate.beta.flatten().to(place) for gate in gates])
        weights = torch.as_tensor(self._weights * self._entries.sizes, dtype=betas.dtype, device=place)
        return -(self.strength * PRESSURE * weights * F.logsigmoid(betas)).sum()

    def step(self, optimizer: Optimizer | None = None) -> bool:
        """Call it after each step of the optimiser. Looks, shifts thresholds and, when it is due, makes model and
        optimiser small in place; returns True at that step."""
        if self._step == 0 and optimizer is not None:
            warn_of_idle_gates(self.model, optimizer)
        self._step += 1
        if self.finished:
            if self._step > self.steps and not self._warned:
                self._warned = True
                warnings.warn(
                    f"step was called more often than the {self.steps} steps that this budget was made for",
                    SparsityWarning,
                    stacklevel=2,
                )
            return False
        due = max(1, round(self.due * self.steps))
        if self._step >= due:
            self._land(optimizer)
            return True
        if self._step % self.every == 0:
            self._look(1 - (1 - self._step / due) ** 3)
        return False

    # Looks ----------------------------------------------------------------------------------------------------------

    @property
    def cost(self) -> dict[str, float]:
        """What the network costs now, as shares of the whole one."""
        alive = self._entries.alive() if not self.finished else None
        now = self._costs.cost(alive) if alive is not None else self._final
        return {name: float(now[i] / self._costs.whole[i]) for i, name in enumerate(METRICS)}

    def _excess(self, cost: Numbers, limits: Numbers) -> float:
        """The largest of the costs over their limits, as a ratio."""
        return float((cost / limits).max())

    def _look(self, done: float) -> None:
        """Put the cost on the ramp, `done` of the way to the budget."""
        alive = self._entries.alive()
        self._weights = self._group_weights(alive)
        ramp = self._costs.whole - (self._costs.whole - np.minimum(self._limits, self._costs.whole)) * done
        ramp = np.where(np.isinf(self._limits), np.inf, ramp)
        cost = self._costs.cost(alive)
        if self._excess(cost, ramp) > 1:
            self._shift_to(ramp)
        elif self._excess(cost, self._limits) < 1:
            self._shift_to(self._limits)
        self._note(float(np.nanmin(ramp / self._costs.whole)))

    def _note(self, wanted: float) -> None:
        self.history.append(Look(self._step, self.cost, wanted, int(self._entries.alive().sum())))

    def _group_weights(self, alive: Mask) -> Numbers:
        """What an entry of each group costs, the mean over all entries being 1."""
        metric = int(np.argmax(self._costs.cost(alive) / self._limits))
        marginal = self._costs.marginal(alive, metric)
        by_group = np.bincount(self._entries.group, weights=marginal) / self._entries.sizes
        mean = marginal.mean() or 1.0
        return np.asarray(np.maximum(by_group / mean, FLOOR))

    def _order(self) -> tuple[Numbers, np.ndarray[Any, np.dtype[np.int64]]]:
        """At which common shift each entry dies, and the entries in that order; last entries that must live are last."""
        dies_at = self._entries.margins() / self._weights[self._entries.group]
        for group in self._essential:
            mine = np.flatnonzero(self._entries.group == group)
            dies_at[mine[np.argmax(dies_at[mine])]] = np.inf
        return dies_at, np.argsort(dies_at, kind="stable")

    def _without(self, order: np.ndarray[Any, np.dtype[np.int64]], dead: int) -> Mask:
        alive = np.ones(self._entries.count, bool)
        alive[order[:dead]] = False
        return alive

    def _shift_to(self, limits: Numbers) -> None:
        """Shift all thresholds by one amount times their weight, so that the cost is just within the limits."""
        while True:
            dies_at, order = self._order()
            dead = _least(
                lambda count: self._excess(self._costs.cost(self._without(order, count)), limits) <= 1,
                int((dies_at < np.inf).sum()),
            )
            if self._keeps_output(self._without(order, dead)):
                break
        self._shift_between(dies_at, order, dead)

    def _shift_between(self, dies_at: Numbers, order: np.ndarray[Any, np.dtype[np.int64]], dead: int) -> None:
        """Shift thresholds so that the first `dead` entries of the order die and the others live."""
        below = dies_at[order[dead - 1]] if dead else -np.inf
        above = dies_at[order[dead]] if dead < len(order) else np.inf
        edges = [edge for edge in (below, above) if np.isfinite(edge)]
        if edges:
            away = 0.0 if len(edges) == 2 else 1e-3 if np.isfinite(below) else -1e-3
            self._entries.shift((sum(edges) / len(edges) + away) * self._weights)

    def _keeps_output(self, alive: Mask) -> bool:
        """Whether the output still depends on the input; if not, groups without a live entry become essential."""
        groups = np.bincount(self._entries.group, weights=alive)
        empty = frozenset(np.flatnonzero(groups == 0).tolist())
        if empty <= self._may_be_empty:
            return True
        if self._costs.keeps_output(alive):
            self._may_be_empty = empty
            return True
        self._essential |= empty - self._may_be_empty
        return False

    def _land(self, optimizer: Optimizer | None) -> None:
        """Reach the budget exactly, then make everything small."""
        self._weights = self._group_weights(self._entries.alive())
        self._shift_to(self._limits)
        dies_at, order = self._order()
        exact = self._costs.exact()

        def fits(dead: int) -> bool:
            return self._excess(exact(self._without(order, dead)), self._limits) <= 1

        # the formula counts channels that follow several entries as alive, so fewer need to die than it says
        dead = int((dies_at <= 0).sum())
        step = 1
        while dead and fits(max(dead - step, 0)):
            dead, step = max(dead - step, 0), 2 * step
        low = max(dead - step, 0)
        dead = low + _least(lambda count: fits(low + count), dead - low) if dead else 0
        while not fits(dead):
            dead += 1
        self._shift_between(dies_at, order, dead)
        small = compact(self.model, self.example.inputs)
        self._final = np.array([small.after.macs, small.after.params, small.after.bytes], float)
        self._note(float(np.nanmin(self._limits / self._costs.whole)))
        shrink_in_place(self.model, small, optimizer)
        self._small = small

    def __repr__(self) -> str:
        asked = ", ".join(
            f"{name} {limit / whole:.0%}"
            for name, limit, whole in zip(METRICS, self._limits, self._costs.whole, strict=True)
            if np.isfinite(limit)
        )
        state = "reached" if self.finished else f"step {self._step} of {round(self.due * self.steps)} until it is due"
        now = ", ".join(f"{name} {share:.1%}" for name, share in self.cost.items())
        return f"Budget({asked}; {state}; now {now})"


def _least(holds: Callable[[int], bool], most: int) -> int:
    """The least number from 0 to `most` for which `holds` is true; it is true from there on."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
