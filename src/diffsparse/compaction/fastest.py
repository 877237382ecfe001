"""Of all plans that compute the same, a fast one: candidates are timed in turns, with a bounded effort."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import nn

from diffsparse.compaction.actions import Slice
from diffsparse.compaction.attempts import Exact, first_exact
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.verify import Trials
from diffsparse.compaction.widening import WHOLE, Widening
from diffsparse.example import Example
from diffsparse.measuring.latency import Share, interleaved_seconds, quiet_seconds
from diffsparse.measuring.onnx_graph import onnx_call

Backend: TypeAlias = Literal["torch", "onnxruntime"]

SECONDS = 20.0
"""Effort if the user says nothing."""
_TIED = Widening(round_to=8, selects=False, expands=False)
VARIANTS: tuple[tuple[Widening, bool], ...] = (
    (Widening(), True),
    (Widening(round_to=8), True),
    (_TIED, True),
    (Widening(round_to=8), False),
    (Widening(round_to=16), True),
    (Widening(round_to=4), True),
    (replace(_TIED, round_to=1), True),
    (Widening(round_to=8, expands=False), True),
    (Widening(round_to=16), False),
    (Widening(round_to=4), False),
    (_TIED, False),
    (Widening(round_to=WHOLE), True),
)
"""Plans to try for the whole network, and whether batch norms are folded; the most promising first."""
OPTIONS = (
    *(_TIED, replace(_TIED, round_to=1)),
    *(Widening(round_to=16), Widening(round_to=8), Widening(), Widening(round_to=WHOLE)),
)
"""What to try for tensors of one width."""
MAKING, RACING, REFINING = 0.35, 0.6, 0.85
"""Shares of the effort after which no more plans are made, the best of them is chosen, and details are left alone."""
RUNS, FINAL_RUNS = 8, 20
"""Least number of rounds in a race, and in the last one."""
BEHIND, BETTER, GAIN = 1.05, 0.98, 0.99
"""Relative times: of those that leave a race, of a detail that is taken over, of a network that is worth it at all."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the clock decided; prints as one line."""

    how: str
    """Which dead channels stay, in words."""
    backend: Backend
    seconds_before: float
    """Time of the original on the example, while nothing else disturbs it."""
    seconds_after: float
    """The same for the chosen network, timed in turns with the original."""
    tried: int
    """How many networks were timed."""

    def __str__(self) -> str:
        before, after = 1e3 * self.seconds_before, 1e3 * self.seconds_after
        share = after / before if before else 1.0
        return f"latency    {after:>12.3f} ms of {before:>9.3f} ms ({share:.1%}) in {self.backend}: {self.how}"


@dataclass(frozen=True)
class _Candidate:
    exact: Exact
    widening: Widening
    fold: bool
    call: Callable[[], object]

    def __str__(self) -> str:
        return ", ".join([str(self.widening), *(["fold"] if self.fold else [])])


class Fastest:
    """Searches among exact plans for a recorded model.

    Args:
        model: the user's own; it is not changed.
        graph: its recording.
        trials: every candidate is compared on them.
        example: what is timed.
        fold: whether batch norms may be folded.
        seconds: the effort, about: at least two networks are always timed.
        backend: what runs them.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        trials: Trials,
        example: Example,
        *,
        fold: bool,
        strict: bool,
        seconds: float,
        backend: Backend,
    ) -> None:
        self._model, self._graph, self._trials, self._example = model, graph, trials, example
        self._fold, self._strict, self._seconds, self._backend = fold, strict, seconds, backend
        self._plans: list[Plan] = []
        self._began = time.perf_counter()

    def search(self, lossless: Exact) -> tuple[Exact, Choice]:
        """The fastest network found, which may be the original, and how it was chosen."""
        with torch.no_grad():
            whole = materialise(self._model).eval()
            original = self._runner(whole)
            made = self._made(lossless)
            best = self._refined(self._winner(list(made)))
            finalists = [best] if best is made[0] else [best, made[0]]
            rounds = self._race([original, *(each.call for each in finalists)], 1 - REFINING, FINAL_RUNS)
        relative, (before, after, *others) = _relative(rounds), map(quiet_seconds, rounds)
        if others and relative[1] > BETTER * relative[2]:
            # a winner by chance; without a real gain, what is smallest is best
            best, after, relative[1] = made[0], others[0], relative[2]
        how, exact = str(best), best.exact
        if not exact.unchanged and relative[1] > GAIN:
            how, exact, after = "the original, because no smaller network was faster", self._original(whole), before
        return exact, Choice(
            how=how, backend=self._backend, seconds_before=before, seconds_after=after, tried=len(self._plans) + 1
        )

    def _runner(self, model: nn.Module) -> Callable[[], object]:
        return partial(self._example.run, model) if self._backend == "torch" else onnx_call(model, self._example)

    def _spent(self) -> float:
        """The share of the effort that is over."""
        return (time.perf_counter() - self._began) / self._seconds if self._seconds else 1.0

    def _candidate(self, widening: Widening, fold: bool) -> _Candidate | None:
        """A network made by this plan; None if there was the same plan before."""
        small = materialise(self._model).eval()
        self._graph.attach(small)
        exact = first_exact(
            self._model, small, self._graph, self._trials, widening=widening, strict=self._strict, fold=fold
        )
        return self._noted(exact, widening, fold)

    def _noted(self, exact: Exact, widening: Widening, fold: bool) -> _Candidate | None:
        plan = replace(exact.plan, kept=())
        if plan in self._plans:
            return None
        self._plans.append(plan)
        return _Candidate(exact, widening, fold, self._runner(exact.model))

    def _made(self, lossless: Exact) -> list[_Candidate]:
        first = self._noted(lossless, Widening(), False)
        assert first is not None
        made = [first]
        for widening, fold in VARIANTS if not lossless.unchanged else ():
            if self._spent() > MAKING and len(made) > 1:
                break
            if (fold and not self._fold) or (candidate := self._candidate(widening, fold)) is None:
                continue
            made.append(candidate)
        return made

    def _winner(self, candidates: list[_Candidate]) -> _Candidate:
        """The fastest of several: those that are clearly behind leave, and the others run on."""
        while len(candidates) > 1:
            relative = _relative(self._race([each.call for each in candidates], 0.1, RUNS))
            order = sorted(range(len(candidates)), key=lambda place: relative[place])
            last_round = self._spent() > RACING or len(candidates) == 2
            keep = 1 if last_round else max(len(candidates) // 2, 2)
            near = [place for place in order[:keep] if relative[place] <= BEHIND * relative[order[0]]]
            candidates = [candidates[place] for place in near]
        return candidates[0]

    def _refined(self, best: _Candidate) -> _Candidate:
        """The candidate with other choices for tensors of one width, as long as there is time."""
        for width in _sizes(best.exact.plan) if not best.exact.unchanged else ():
            for option in OPTIONS:
                if self._spent() > REFINING:
                    return best
                widening = replace(best.widening, widths={**best.widening.widths, width: option})
                other = self._candidate(widening, best.fold)
                if other is not None and _relative(self._race([best.call, other.call], 0.05, RUNS))[1] < BETTER:
                    best = other
        return best

    def _race(self, calls: Sequence[Callable[[], object]], share: float, runs: int) -> list[list[float]]:
        """The seconds of each call in each round; all together take a share of the effort, or a few runs."""
        each = share * self._seconds / len(calls)
        with torch.no_grad():
            return interleaved_seconds(
                calls, device=self._example.device, seconds=each, warmup=2, min_runs=runs, own_time=True
            )

    def _original(self, whole: nn.Module) -> Exact:
        reason = f"no smaller network is faster than the original on this machine ({self._backend}), so it stays whole"
        plan = Plan(tensors={}, layers={}, kept=(Kept(layer="", reason=reason),))
        return Exact(whole, plan, self._trials.check(whole), (), unchanged=True)


def _relative(rounds: list[list[float]]) -> list[float]:
    """The time of each call as a multiple of the first one's."""
    return [Share.of(times, rounds[0]).median for times in rounds]


def _sizes(plan: Plan) -> list[int]:
    """Widths, as they were, of tensors that lost channels; those next to the most layers first."""
    counts = Counter(action.outputs[0] for action in plan.layers.values() if isinstance(action, Slice))
    return [width for width, _ in counts.most_common()]
