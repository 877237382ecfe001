"""One random network: built, compacted, compared with itself at four sizes and three batch sizes."""

import os
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse import SparsityWarning
from diffsparse.compaction import Compacted, Plan, compact, live_macs
from diffsparse.compaction.actions import Emit, Slice
from diffsparse.compaction.materialise import materialise
from diffsparse.example import tensors_in
from tests.compaction.networks import Net, Spec, build, inputs

TOLERANCE = 1e-9
FLOOR = 1e-2
"""Outputs smaller than this are compared as if they were this large: they may be what is left of a cancellation."""
_TRIALS: tuple[dict[str, int], ...] = (
    {},
    {"batch": 1, "grow": 1, "seed": 1},
    {"batch": 3, "grow": 2, "seed": 2},
    {"batch": 2, "grow": -1, "seed": 3},
)
"""Inputs to compare at; what the network does not take at another size is tried at that of the example."""
_COSTLY = 4
"""One network in so many is also written to JSON, another one counted: slow, and wrong for many or for none."""


@dataclass(frozen=True)
class Outcome:
    """What became of one network."""

    problem: str = ""
    """Empty if everything holds."""
    detail: str = ""
    attempts: int = 0
    """How often `compact` had to try; `detail` is why the last but one failed."""
    skipped: bool = False
    """Whether the network itself does not run, or gives numbers that are not finite."""
    hard: bool = False
    """Whether the code of the network computes with the number of channels."""
    before: int = 0
    after: int = 0
    """Parameters."""

    @property
    def refused(self) -> bool:
        """Whether `compact` raised."""
        return self.problem.startswith("compact")

    @property
    def falls_back(self) -> bool:
        """Whether `compact` had to be careful with a network that has no sizes in its code."""
        return self.attempts > 1 and not self.hard and not self.problem


@dataclass(frozen=True)
class Answer:
    """What the original gives for an input."""

    what: str
    given: tuple[Tensor, ...]
    expected: list[Tensor]


def check(spec: Spec) -> Outcome:
    """Build, compact and compare one network."""
    net = build(spec)
    answers = _answers(spec, net.eval())
    if not answers:
        return Outcome(skipped=True)
    net.train(spec.training)
    state = _state(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsityWarning)
        try:
            small = compact(net, inputs(spec, net), round_to=spec.round_to, fold=spec.fold)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            return Outcome(f"compact: {type(error).__name__} at {place}", str(error))
    attempts = len(small.fallbacks) + 1
    ordinary = materialise(net)
    try:
        _check_model(spec, net, ordinary, small, state)
        small.model.eval()
        for answer in answers:
            _equal(answer, small.model)
    except AssertionError as error:
        return Outcome(str(error).partition(":")[0], f"{error}\n{small.plan}", attempts)
    detail, sizes = "".join(small.fallbacks[-1:]), (_size(ordinary), _size(small.model))
    return Outcome(attempts=attempts, detail=detail, hard=net.hard, before=sizes[0], after=sizes[1])


def _answers(spec: Spec, net: Net) -> list[Answer]:
    """What the network itself gives; nothing if it does not take the example: a block may refuse what another gave."""
    found = []
    for trial in _TRIALS:
        for sizes in (trial, {**trial, "grow": 0}) if spec.dims else ({**trial, "grow": 0},):
            given = inputs(spec, net, **sizes)
            if trial.get("batch") == 3:
                given = tuple(100 * x for x in given)
            try:
                expected = list(tensors_in(_run(net, given)))
            except (RuntimeError, ValueError, IndexError):
                continue
            if not trial and not all(bool(torch.isfinite(t).all()) for t in expected):
                return []
            found.append(Answer(f"{sizes or 'the example'}", given, expected))
            break
        else:
            if not trial:
                return []
    return found


def _check_model(spec: Spec, net: Net, ordinary: nn.Module, small: Compacted[Net], state: Any) -> None:
    """Everything but what it computes."""
    _same_state(state, _state(net))
    if spec.seed % _COSTLY == 1:
        assert Plan.from_json(small.plan.to_json()) == small.plan, "plan changed by JSON"
    for name, module in small.model.named_modules():
        assert module.training == spec.training, f"training flag: of {name!r} is {module.training}"
    _no_growth(ordinary, small)
    if spec.seed % _COSTLY == 0 and spec.round_to == 1 and not spec.fold and not _careful(small):
        counted = live_macs(net, inputs(spec, net))
        assert counted == small.after.macs, f"MACs counted from the plan: {counted}, of the model {small.after.macs}"


def _careful(small: Compacted[Net]) -> bool:
    """Whether it is not the first plan that was taken, or nothing shows whether its code counts heads.

    If queries, keys or values are constant, what comes out is the same however many heads the code counts.
    """
    insists = small.insists_on_heads or small.insists_on_head_width
    scores = (action for name, action in small.plan.layers.items() if {"q", "k", "v"} & {*name.split(".")})
    alike = any(isinstance(action, Emit) for action in scores)
    return bool(small.fallbacks) or insists or alike or small.constant_output


def _equal(answer: Answer, model: nn.Module) -> None:
    try:
        got = list(tensors_in(_run(model, answer.given)))
    except Exception as error:
        raise AssertionError(f"refuses an input: {answer.what}: {type(error).__name__} {error}") from error
    shapes, wanted = ([t.shape for t in tensors] for tensors in (got, answer.expected))
    assert shapes == wanted, f"other shapes: {answer.what}: {shapes}"
    for a, b in zip(answer.expected, got, strict=True):
        if a.numel() == 0 or not torch.isfinite(a).all():
            continue
        apart = (a - b).abs().max().item() / max(a.abs().max().item(), FLOOR)
        assert apart <= TOLERANCE, f"outputs differ: {answer.what}: {apart:.3g} relative"


@torch.no_grad()
def _run(model: nn.Module, given: tuple[Tensor, ...]) -> Any:
    return model(*(x.clone() for x in given))


def _state(net: nn.Module) -> dict[str, Any]:
    tensors = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    flags = {name: module.training for name, module in net.named_modules()}
    hooks = {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in net.named_modules()}
    return {"tensors": tensors, "flags": flags, "hooks": hooks, "modules": str(net)}


def _same_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert list(before["tensors"]) == list(after["tensors"]), "input model touched: names"
    for name, tensor in before["tensors"].items():
        assert torch.equal(tensor, after["tensors"][name]), f"input model touched: {name}"
    for key in ("flags", "hooks", "modules"):
        assert before[key] == after[key], f"input model touched: {key}"


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _no_growth(ordinary: nn.Module, small: Compacted[Net]) -> None:
    old = dict(ordinary.named_parameters(remove_duplicate=False))
    slices = {name: action for name, action in small.plan.layers.items() if isinstance(action, Slice)}
    biased = {name: action for name, action in slices.items() if action.adds_bias}
    for name, parameter in small.model.named_parameters():
        owner, _, key = name.rpartition(".")
        if name not in old and (owner in small.plan.baked or (key == "bias" and owner in biased)):
            continue
        assert name in old, f"new parameter: {name}"
        assert parameter.numel() <= old[name].numel(), f"parameter grew: {name}"
    added = sum(layer.outputs[1] for layer in biased.values())
    assert _size(small.model) <= _size(ordinary) + added, "more parameters than before: shared ones came apart"
