"""Plans from bold to careful; the first one that computes the same wins, and what that costs is said in words."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from diffsparse.compaction.actions import Action, Slice
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.apply import shrink_in_place, write_plan_tensors
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.numbers_used import OtherNumbersError
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.planner import make_plan
from diffsparse.compaction.rescale import ScoreScales
from diffsparse.compaction.rules.attention import Attention
from diffsparse.compaction.rules.contraction import Contraction
from diffsparse.compaction.stated import Stated, stated_widths
from diffsparse.compaction.verify import Trials
from diffsparse.compaction.widening import Widening
from diffsparse.errors import SparsityError

# How far the code around modules is trusted: to work at other widths, not to miss modules that are gone, to be recorded
# as a whole. Those that assume unseen reads are for code that the recorder cannot see into, such as vmapped functions.
_WIDE: dict[str, Any] = {"narrow": False, "trust_reshape_sizes": False}
_ATTEMPTS: tuple[dict[str, Any], ...] = (
    {},
    {"dead_modules": "stand in"},
    {"dead_modules": "stay"},
    {"trust_reshape_sizes": False},
    _WIDE,
    {**_WIDE, "assume_unseen_reads": "unread"},
    {**_WIDE, "assume_unseen_reads": "all"},
    {**_WIDE, "assume_unseen_reads": "all", "dead_modules": "stay"},
)


# Much code writes down how many heads there are, so that it is no problem if this one fails: layers shrink as much.
_HEADS: dict[str, Any] = {"heads": True}
_WITHIN: dict[str, Any] = {**_HEADS, "within": True}
_WITH_HEADS = (_WITHIN, _HEADS, *({**each, "whole_heads": True} for each in _ATTEMPTS))


@dataclass(frozen=True)
class Exact:
    """A small model that computes the same."""

    model: nn.Module
    plan: Plan
    difference: float
    """Largest relative difference that was seen."""
    problems: tuple[str, ...]
    """What was wrong with bolder plans."""
    insists_on_heads: bool = False
    """Whether the code insists on the number of its heads: dead ones leave the layers, not the tensors between."""
    insists_on_head_width: bool = False
    """Whether the code insists on the width of its heads: likewise for dead channels within them."""
    unchanged: bool = False
    """Whether no plan held: then what the analysis says of the model is not to be believed either."""


def first_exact(
    model: nn.Module, small: nn.Module, graph: Graph, trials: Trials, *, widening: Widening, strict: bool, fold: bool
) -> Exact:
    """Plan, apply and compare, boldest first; `small` is the recorded copy of `model`, and is cut."""
    problems: list[Exception] = []
    plans: list[Plan] = []
    insists: dict[str, bool] = {}
    for attempt in _attempts(model, graph, trials, problems):
        if plans:
            # the failed attempt has cut the recorded model
            small = materialise(model).eval()
            graph.attach(small)
        # what runs on cannot be folded into others either
        folds = fold and attempt.get("dead_modules") != "stay"
        analysis = Analysis(graph, widening=widening, **attempt)
        plan, tensors = make_plan(analysis, folds)
        if plan in plans:
            insists |= _insistence(attempt)
            continue
        plans.append(plan)
        if problems:
            plan = replace(plan, kept=(*plan.kept, *_given_up(plans[0], plan, problems[0])))
        _refuse_kept(plan, strict)
        trials.note_answers(model)
        try:
            if "within" in attempt:
                small, narrow, apart = _narrow_heads(model, small, analysis, trials, folds)
                plan = replace(narrow, kept=plan.kept)
            else:
                write_plan_tensors(shrink_in_place(small, plan), tensors)
                apart = trials.check(small)
            return Exact(small, plan, apart, tuple(map(_in_words, problems)), **insists)
        except Exception as error:
            # the user's own code runs here, and may raise anything at an unexpected width
            insists |= _insistence(attempt)
            if "heads" not in attempt:
                problems.append(error)
    exact = _unchanged(model, plans[0], trials, problems)
    _refuse_kept(exact.plan, strict)
    return exact


def _insistence(failed: dict[str, Any]) -> dict[str, bool]:
    """What the code insists on if this attempt failed."""
    if "heads" not in failed:
        return {}
    return {"insists_on_head_width" if "within" in failed else "insists_on_heads": True}


def _narrow_heads(
    model: nn.Module, small: nn.Module, analysis: Analysis, trials: Trials, fold: bool
) -> tuple[nn.Module, Plan, float]:
    """The small model, its plan and how far it is off; if the code scales scores by the width of heads, mended."""
    scales = ScoreScales(analysis)
    plan, tensors = make_plan(analysis, fold)
    write_plan_tensors(shrink_in_place(small, plan), tensors)
    try:
        return small, plan, trials.check(small)
    except OtherNumbersError:
        scales.make_up_for(trials.recording(small), trials.numbers or Counter())
    small = materialise(model).eval()
    analysis.graph.attach(small)
    plan, tensors = make_plan(analysis, fold)
    write_plan_tensors(shrink_in_place(small, plan), tensors)
    return small, plan, trials.check(small, scales.numbers)


def _attempts(model: nn.Module, graph: Graph, trials: Trials, problems: list[Exception]) -> Iterator[dict[str, Any]]:
    """All of them; after one that made code use other numbers, all with the widths kept that it reads from layers."""
    attempts = _WITH_HEADS if has_heads(graph) else _ATTEMPTS
    stated: Stated | None = None
    for attempt in attempts:
        yield attempt
        if stated is None and problems and isinstance(problems[-1], OtherNumbersError):
            stated = stated_widths(materialise(model).eval(), trials.run_example)
            yield from ({**each, "stated": stated} for each in attempts if stated)


def _refuse_kept(plan: Plan, strict: bool) -> None:
    if strict and plan.kept:
        raise SparsityError(f"strict=True, but some layers cannot be made narrower:\n{plan}")


def _unchanged(model: nn.Module, bold: Plan, trials: Trials, problems: list[Exception]) -> Exact:
    """The model as it is, without gates: for code that computes with the sizes of its own layers."""
    whole, plan = materialise(model).eval(), Plan(tensors={}, layers={})
    trials.check_copy(model, whole)
    kept = Kept(layer="", reason=f"every smaller model gives other outputs: {_in_words(problems[-1])}")
    plan = replace(plan, kept=(kept, *bold.kept, *_given_up(bold, plan, problems[0])))
    return Exact(whole, plan, trials.check(whole), tuple(map(_in_words, problems)), unchanged=True)


def has_heads(graph: Graph) -> bool:
    """Whether tensors with channels are multiplied with each other; those of a single head lie along one dimension."""
    return any(
        isinstance(node.rule, Attention | Contraction) and sum(bool(value.axes) for value in node.inputs) > 1
        for node in graph.nodes
    )


def _in_words(problem: Exception) -> str:
    return str(problem).partition("\n")[0] or type(problem).__name__


def _given_up(bold: Plan, careful: Plan, problem: Exception) -> Iterator[Kept]:
    """What stays in the careful plan and not in the bold one, and the problem of the bold one."""
    for name, action in bold.layers.items():
        if stays := _more_than(action, careful.layers.get(name)):
            yield Kept(layer=name, reason=f"{stays}, but then the model failed: {_in_words(problem)}")


def _more_than(bold: Action, careful: Action | None) -> str:
    """What the careful action keeps of a module beyond the bold one, in words; empty for nothing."""
    if bold.drops_module:
        return "" if careful is not None and careful.drops_module else f"it could go ({bold})"
    if not isinstance(bold, Slice):
        return ""
    # a layer that is not in the plan stays whole
    outputs, inputs = bold.outputs[0], (bold.inputs or (0, 0))[0]
    if isinstance(careful, Slice):
        outputs, inputs = careful.outputs[1], (careful.inputs or (0, 0))[1]
    wider = outputs > bold.outputs[1] or inputs > (bold.inputs or (0, 0))[1]
    return f"it could be smaller ({bold})" if wider else ""
