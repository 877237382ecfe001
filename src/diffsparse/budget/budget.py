"""`Budget`: half the MACs, please."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.budget.bounds import StepBounds
from diffsparse.budget.clock import Clock
from diffsparse.budget.cost_model import CostModel
from diffsparse.budget.entries import GateEntries, steered_gates
from diffsparse.budget.exact import Exact
from diffsparse.budget.latency import LatencyModel
from diffsparse.budget.limits import METRICS, Limits, Numbers, cost_numbers
from diffsparse.budget.look import Look, warn_of_closed
from diffsparse.budget.pressure import Pressure
from diffsparse.budget.regate import Regated, can_go_on, check_can_regate, regate
from diffsparse.budget.rescale import can_follow, multiply_states, rescale
from diffsparse.budget.rgf import warn_of_idle_rgf
from diffsparse.budget.schedule import Schedule
from diffsparse.budget.shrink import given_optimizers, replayed, shrink_in_place, unwrapped_optimizer
from diffsparse.budget.steering import Steering
from diffsparse.budget.training_path import check_training_path
from diffsparse.compaction import Compacted, Plan, compact
from diffsparse.compaction.materialise import check_model, materialise
from diffsparse.errors import SparsityError, require_number
from diffsparse.example import Example
from diffsparse.gating import warn_of_forgotten_parameters, warn_of_idle_gates
from diffsparse.measuring.latency_table import LatencyTable
from diffsparse.module_tree import require_whole_model
from diffsparse.penalties import Norm
from diffsparse.selection import Selection
from diffsparse.sharding import gathered, holds_shards

DUE, EARLY = 0.5, 0.05
"""Share of the steps after which the cost is reached; early where gates know from the start what matters."""
STRENGTH = 4e-4
"""Lambda of the pressure at first, if some gates are on batch norms."""
SLACK = 0.1
"""How far from the ramp the cost may be before thresholds are shifted: of the whole at first, of the limit at last."""


class Budget:
    """Steers the gates of a model to a cost, in any training loop, then makes model and optimiser small in place.

    A pressure on the thresholds alone, weighted by what an entry costs, lets the loss decide which entries survive.
    Every few steps the budget looks at the cost and steers the pressure, so that the cost follows a ramp that ends at
    the number you asked for after the share `due` of all steps. Where the pressure is too slow, all thresholds are
    shifted by a common amount. Then the network becomes small, and the rest of the run trains it without any pressure.
    It ends on the number: never above it, and at most one channel below.

    Args:
        model: a gated model.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        macs, params, bytes: what the network may cost: a share of the whole one (above 0, up to 1) or, above 1, a
            number; of MACs for one sample. If several are given, all hold.
        latency: what the network may take on the example, as a share of the whole one's time on this machine. Layers
            are timed when the budget is made, unless a table of latencies has them.
        steps: how often `step` will be called in the whole run.
        due: the share of the steps after which the cost is reached; by default half of them, or a twentieth in a
            network without batch norms whose gates start at the importance of their entries, because it is trained.
        shrinks: in how many steps the network becomes small, evenly until it is due; with more than one, the first part
            of the run gets faster too. Gates live on in between; what is gone does not come back.
        only: the gates to steer, chosen as for a `Penalty`. Others keep their values, and become part of the network
            with them when it is made small. So do gates that are frozen (`requires_grad` of beta) when this is called.
        pressure: a norm, such as `ds.L1()`, presses on gates; by default the pressure is on thresholds.
        strength: lambda of the pressure at first, before it is steered; 0 leaves everything to the shifts. That is the
            default in networks without batch norms, whose signals would vanish with gates that all become smaller.
        weighted: whether pressure and shifts are in proportion to what an entry costs; by default if some gates are on
            batch norms. Heads and neurons of networks without them die by their importance alone.
        table: of latencies, or the file that holds it; by default a file in your cache.

    Example:
        >>> import torch, diffsparse as ds
        >>> import torch.nn.functional as F
        >>> model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
        >>> model, x = ds.sparsify(model, start=1.0), torch.randn(64, 8)
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
        latency: float | None = None,
        steps: int,
        due: float | None = None,
        shrinks: int = 1,
        only: Selection | None = None,
        pressure: Norm | None = None,
        strength: float | None = None,
        weighted: bool | None = None,
        table: LatencyTable | str | os.PathLike[str] | None = None,
    ) -> None:
        require_whole_model(model, "make the budget first, then shard the model")
        self.model = check_model(model)
        self.example = Example.of(example_inputs)
        gates, self._frozen = steered_gates(self.model, only)
        entries = GateEntries(gates)
        usual = EARLY if entries.know_importance else DUE
        self._schedule = Schedule(steps, due=usual if due is None else due, shrinks=shrinks)
        self.steps, self.due = steps, self._schedule.due
        """Of the whole run, and the step at which the cost is reached."""
        warn_of_idle_rgf(self.model, self.example, gates)
        if shrinks > 1:
            check_can_regate(self.model)
        by_default = 0.0 if entries.without_norm.all() and pressure is None else STRENGTH
        given = by_default if strength is None else require_number("strength", strength, low=0)
        self._pressure = Pressure(entries, pressure, given)
        asked = {"macs": macs, "params": params, "bytes": bytes, "latency": latency}
        clock = None if latency is None else Clock.of(self.model, self.example, latency, table)
        self._costs = CostModel(self.model, self.example, entries, None if clock is None else clock.table)
        limits = Limits.asked(asked, self._costs.whole, self._costs.samples)
        by_cost = not entries.without_norm.all() if weighted is None else weighted
        self._steering = Steering(entries, self._costs, limits, self._exact, clock, weighted=by_cost)
        self._steering.check_reachable()
        check_training_path(self.model, self.example, entries)
        self._bounds = StepBounds()
        shares = self._steering.limits.shares(self._costs.whole)
        self._made_for = {
            "steps": steps,
            "due": self.due,
            "shrinks": sorted(self._schedule.shrinks_at),
            "limits": shares,
        }
        self._step = 0
        self._plans: list[Plan] = []
        self._small: Compacted[Any] | None = None
        self.finished = False
        """Whether the cost has been reached and the model is small for good."""
        self.history: list[Look] = []
        """Every look, the first to the last."""

    def _exact(self) -> Exact:
        steering, predicted = self._steering, self._costs.predicted_latency
        return Exact(self._whole(), self.example, steering.entries, predicted, counts=steering.limits.of_counted)

    def _whole(self) -> nn.Module:
        """The model, or a copy of it that is not sharded; a step that needs it is the same step in all processes."""
        return gathered(self.model) if holds_shards(self.model) else self.model

    @property
    def small(self) -> Compacted[Any]:
        """The model with the plan by which it became small, for `save` and `MovingAverage.follow`."""
        if self._small is None:
            raise SparsityError(
                f"the model is not small yet; wait for step {min(self._schedule.shrinks_at)} of {self.steps}"
            )
        return self._small

    @property
    def cost(self) -> dict[str, float]:
        """What the network costs now, as shares of the whole one."""
        if self.finished:
            return {name: getattr(self.history[-1], name) for name in self._costs.metrics}
        return self._shares(self._steering.observe())

    def penalty(self) -> Tensor:
        """The term to add to the loss: a scalar, zero once the cost is reached."""
        if self.finished:
            self._schedule.warn_beyond_the_end(self._step + 1)
            # a loop may call backward on it alone
            return next(self.model.parameters(), torch.zeros(())).new_zeros((), requires_grad=True)
        entries = self._steering.entries
        self._bounds.remember(entries, self._steering.spared | entries.without_norm)
        return self._pressure.term(self._steering.weights, self._steering.spared)

    def step(self, *optimizers: Optimizer | Iterable[Optimizer]) -> bool:
        """Look and steer; call it after each step of the optimiser, with all optimisers of the model.

        When it is time, this makes model and optimisers small in place, verified on a copy first. It returns True then:
        wrap the model in DistributedDataParallel again, and make anew what holds parameters of the old shape. A model
        that is sharded stays as it is: shard `small.model`, and make an optimiser for it.
        """
        given = given_optimizers(optimizers)
        if not given:
            raise SparsityError("step needs the optimiser of the model, or all of them, which become small with it")
        if self._step == 0:
            warn_of_idle_gates(self.model, *given)
            warn_of_forgotten_parameters(self.model, *given)
        elif self._step == 1 and not self.finished:
            self._pressure.warn_if_left_out()
        self._step += 1
        if self.finished:
            self._schedule.warn_beyond_the_end(self._step)
            return False
        self._steering.worth.watch(given)
        try:
            return self._look_and_shrink(given)
        except Exception:
            self._step -= 1  # whoever mends what is wrong may go on from here
            raise

    def _look_and_shrink(self, optimizers: Sequence[Optimizer]) -> bool:
        # frameworks move a model after its budget was made
        self.example = self.example.beside(self.model)
        self._bounds.apply()
        shrinks = self._step in self._schedule.shrinks_at
        if self._step == self.due:
            self._steering.land()
        elif self._schedule.looks_at(self._step):
            self._look()
        return shrinks and self._shrink(optimizers)

    def _look(self) -> None:
        self._steering.find_series()
        # a chain shows what matters in it when it has learned something
        left = self._schedule.left(self._step, begin=self.due // 2 if self._steering.is_chain else 0)
        ramp = self._steering.limits.on_the_way(self._costs.whole, 1 - left)
        self._pressure.steer(ramp.missing(self._steering.observe(), self._costs.whole), self._schedule.every / self.due)
        alive = self._steering.look(*self._around(ramp, left))
        self._note(self._costs.cost(alive), ramp, self._steering.entries.by_kind(alive))

    def _around(self, ramp: Limits, left: float) -> tuple[Limits, Limits]:
        """The highest and the lowest cost at which nothing is shifted, with so much of the way left."""
        limits, whole = self._steering.limits, self._costs.whole
        # close to the end the loss would open again what shifts close; in a chain nothing else closes anything
        room = SLACK if self._pressure.acts and not self._steering.is_chain else 0.0
        end = np.minimum(limits.numbers, whole)
        highest = ramp.loosened(SLACK * left, whole).at_least(ramp.loosened(room, end))
        return highest, ramp.loosened(-SLACK, whole).at_least(limits.loosened(-room, end))

    def _note(self, cost: Numbers, limits: Limits, kinds: dict[str, int]) -> None:
        shares, wanted = self._shares(cost), min(limits.shares(self._costs.whole).values())
        lambda_ = 0.0 if self._step == self.due else self._pressure.strength
        alive = sum(kinds.values())
        self.history.append(Look(step=self._step, wanted=wanted, alive=alive, strength=lambda_, kinds=kinds, **shares))

    def _shares(self, cost: Numbers) -> dict[str, float]:
        shares = dict(zip(METRICS, (cost / self._costs.whole).tolist(), strict=True))
        return {name: shares[name] for name in self._costs.metrics}

    def _shrink(self, optimizers: Sequence[Optimizer]) -> bool:
        model, last = self._whole(), self._step == self.due
        if model is not self.model and not last:
            raise SparsityError("a sharded model becomes small once, when the budget is due; give shrinks=1")
        small = compact(model, self.example.inputs)
        if model is not self.model:  # its user shards the small one
            self.model, optimizers = model, ()
        regated = None if last else regate(self.model, small)
        if regated is not None and not can_go_on(small, regated, self._steering, self.example):
            return False
        kinds = self._steering.entries.by_kind(self._steering.entries.alive())
        inner = [unwrapped_optimizer(optimizer) for optimizer in optimizers]
        if last and can_follow(inner):
            norms = {name.rpartition(".")[0] for name in self._steering.entries.gates}
            factors = rescale(small.model, self.example, norms, is_chain=self._steering.is_chain)
            small = replace(small, multiplied=factors)
        self._adopt(small, regated, optimizers)
        multiply_states(inner, self.model, small.multiplied)
        if last:
            self._note(cost_numbers(small.after, self._steering.measured_latency), self._steering.limits, kinds)
            warn_of_closed(kinds)
        return True

    def _adopt(self, small: Compacted[Any], regated: Regated | None, optimizers: Sequence[Optimizer]) -> None:
        """Make model and optimisers what `small` is; unless it is the last time, gates live on, as in `regated`."""
        self._plans.append(replace(small.plan, earlier=()))
        original = materialise(self.model).to("meta")
        if regated is None:
            shrink_in_place(self.model, small, optimizers)
        else:
            shrink_in_place(self.model, regated.with_gate_slices(), optimizers, gates_stay=True)
            groups = self._steering.keep(self.model, regated.kept)
            self._pressure.keep(self._steering.entries, groups)
        self._small = replace(small, model=self.model, original=original, known_before=self._costs.measured)
        self.finished = regated is None
        if self.finished:
            self._steering.worth.stop()

    def state_dict(self) -> dict[str, Any]:
        """Where the budget is, as plain data, for a checkpoint; model and optimiser have states of their own."""
        return ({} if self._costs.latency is None else {"latency": self._costs.latency.state_dict()}) | {
            "made_for": self._made_for,
            "step": self._step,
            "history": [asdict(look) for look in self.history],
            "steering": self._steering.state_dict(),
            "pressure": self._pressure.state_dict(),
            "plans": [plan.to_json() for plan in self._plans],
        }

    def load_state_dict(self, state: dict[str, Any], *optimizers: Optimizer | Iterable[Optimizer]) -> None:
        """Go on where `state_dict` was taken, with a budget made as that one was.

        Call it first, with all optimisers. If the model was small by then, this makes model and optimisers small, so
        that their own states, loaded next, fit.
        """
        given = given_optimizers(optimizers)
        if self._step:
            raise SparsityError("load the state into a new budget, before its first step")
        try:
            if others := [name for name, value in self._made_for.items() if state["made_for"][name] != value]:
                words = ", ".join(f"{name} {state['made_for'][name]}, now {self._made_for[name]}" for name in others)
                raise ValueError(f"it was made with {words}. Make this one alike; a longer run is a new run")
            if self._costs.latency is not None:
                self._costs.latency = LatencyModel.from_state(state["latency"])
            step, history = int(state["step"]), [Look(**look) for look in state["history"]]
            plans = [Plan.from_json(plan) for plan in state["plans"]]
            for number, plan in enumerate(plans, 1):
                small = replayed(self.model, plan, self.example)
                last = step >= self.due and number == len(plans)
                self._adopt(small, None if last else regate(self.model, small), given)
            self._steering.load_state_dict(state["steering"])
            self._pressure.load_state_dict(state["pressure"])
            # gradients of the first step are not watched, because nobody knows the optimisers yet
            self._steering.worth.watch(given if step and not self.finished else ())
        except (LookupError, TypeError, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise SparsityError(f"this is not the state of a budget for this model: {reason}") from error
        self._step, self.history = step, history

    def __repr__(self) -> str:
        asked = ", ".join(f"{k} {share:.1%}" for k, share in self._steering.limits.shares(self._costs.whole).items())
        state = f"step {self._step} of {self.steps}, due at {self.due}; alive"
        if self.finished:
            state = f"reached at step {self.due} of {self.steps}; now"
        now = ", ".join(f"{name} {share:.1%}" for name, share in self.cost.items())
        left = f"; {len(self._frozen)} frozen gate(s) left alone" if self._frozen else ""
        return f"Budget({asked}; {state} {now}{left})"
