"""Compact many random networks and compare: `python -m tests.compaction.fuzz --count 10000 --seed 0`."""

import argparse
import copy
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse import SparsityWarning
from diffsparse.compaction import Compacted, Plan, compact, live_macs
from diffsparse.compaction.actions import Slice
from diffsparse.compaction.materialise import materialise
from diffsparse.example import tensors_in
from tests.compaction.networks import Net, Spec, build, inputs, options, simpler, specification

TOLERANCE = 1e-9
FLOOR = 1e-2
"""Outputs smaller than this are compared as if they were this large: they may be what is left of a cancellation."""


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


def check(spec: Spec) -> Outcome:
    """Build, compact and compare one network."""
    net = build(spec)
    tested = copy.deepcopy(net).eval()
    if not _runs(tested, inputs(spec, net)):
        return Outcome(skipped=True)
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
    try:
        _compare(spec, net, tested, small, state)
    except AssertionError as error:
        return Outcome(str(error).partition(":")[0], f"{error}\n{small.plan}", attempts)
    before, after = _size(materialise(net)), _size(small.model)
    detail = "".join(small.fallbacks[-1:])
    return Outcome(attempts=attempts, detail=detail, hard=net.hard, before=before, after=after)


def _compare(spec: Spec, net: Net, tested: nn.Module, small: Compacted, state: Any) -> None:
    _same_state(state, _state(net))
    text = small.plan.to_json()
    assert Plan.from_json(text) == small.plan, "plan changed by JSON"
    for name, module in small.model.named_modules():
        assert module.training == spec.training, f"training flag: of {name!r} is {module.training}"
    _no_growth(materialise(net), small)
    if spec.round_to == 1 and not spec.fold and not small.fallbacks:
        counted = live_macs(net, inputs(spec, net))
        assert counted == small.after.macs, f"MACs counted from the plan: {counted}, of the model {small.after.macs}"
    locked = small.plan.needs_size
    small.model.eval()
    _equal(tested, small.model, inputs(spec, net), "example")
    _equal(tested, small.model, inputs(spec, net, seed=1), "other numbers")
    _equal(tested, small.model, tuple(100 * x for x in inputs(spec, net, seed=2)), "large numbers")
    for batch in (1, 3):
        _equal(tested, small.model, inputs(spec, net, batch=batch, seed=3), f"batch size of {batch}", may_refuse=True)
    for grow in () if locked or not spec.dims else (1, 2, -1):
        _equal(tested, small.model, inputs(spec, net, grow=grow, seed=4), "other spatial size", may_refuse=True)


def _equal(first: nn.Module, second: nn.Module, given: tuple[Tensor, ...], what: str, may_refuse: bool = False) -> None:
    try:
        expected = list(tensors_in(_run(first, given)))
    except (RuntimeError, ValueError, IndexError):
        if may_refuse:
            return
        raise
    try:
        got = list(tensors_in(_run(second, given)))
    except Exception as error:
        raise AssertionError(f"refuses {what}: {type(error).__name__} {error}") from error
    assert [t.shape for t in got] == [t.shape for t in expected], f"shapes for {what}: {[t.shape for t in got]}"
    for a, b in zip(expected, got, strict=True):
        if not torch.isfinite(a).all():
            continue
        apart = (a - b).abs().max().item() / max(a.abs().max().item(), FLOOR)
        assert apart <= TOLERANCE, f"outputs differ for {what}: {apart:.3g} relative"


@torch.no_grad()
def _run(model: nn.Module, given: tuple[Tensor, ...]) -> Any:
    return model(*(x.clone() for x in given))


def _runs(net: nn.Module, given: tuple[Tensor, ...]) -> bool:
    """Whether the network takes these inputs and gives numbers: a block may refuse a view of what another gave."""
    try:
        return all(bool(torch.isfinite(t).all()) for t in tensors_in(_run(net, given)))
    except RuntimeError:
        return False


def _state(net: nn.Module) -> dict[str, Any]:
    tensors = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    flags = {name: module.training for name, module in net.named_modules()}
    hooks = {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in net.named_modules()}
    return {"tensors": tensors, "flags": flags, "hooks": hooks, "modules": [str(m) for m in net.modules()]}


def _same_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert list(before["tensors"]) == list(after["tensors"]), "input model touched: names"
    for name, tensor in before["tensors"].items():
        assert torch.equal(tensor, after["tensors"][name]), f"input model touched: {name}"
    for key in ("flags", "hooks", "modules"):
        assert before[key] == after[key], f"input model touched: {key}"


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _no_growth(ordinary: nn.Module, small: Compacted) -> None:
    old = dict(ordinary.named_parameters(remove_duplicate=False))
    slices = {name: action for name, action in small.plan.layers.items() if isinstance(action, Slice)}
    biased = {name: action for name, action in slices.items() if action.adds_bias}
    for name, parameter in small.model.named_parameters():
        owner, _, key = name.rpartition(".")
        if name not in old and key == "bias" and owner in biased:
            continue
        assert name in old, f"new parameter: {name}"
        assert parameter.numel() <= old[name].numel(), f"parameter grew: {name}"
    added = sum(layer.outputs[1] for layer in biased.values())
    assert _size(small.model) <= _size(ordinary) + added, "more parameters than before: shared ones came apart"


def reduce(spec: Spec, fails: Callable[[Spec], bool], seconds: float = 30.0) -> Spec:
    """The simplest specification on the way down that still fails."""
    start, going = time.monotonic(), True
    while going and time.monotonic() - start < seconds:
        going = False
        for smaller in simpler(spec):
            if fails(smaller):
                spec, going = smaller, True
                break
    return spec


def explain(spec: Spec, outcome: Outcome, seconds: float = 30.0) -> str:
    """A failure, reduced, with what is needed to see it again."""
    reduced = reduce(spec, lambda s: check(s).problem == outcome.problem, seconds)
    found = check(reduced)
    return (
        f"seed {spec.seed}: {outcome.problem}\n{found.detail or outcome.detail}\n{build(reduced)}\n"
        f"check(Spec.from_json({options(reduced).to_json()!r}))"
    )


def falls_back(outcome: Outcome) -> bool:
    """Whether `compact` had to be careful with a network that has no sizes in its code."""
    return outcome.attempts > 1 and not outcome.hard and not outcome.problem


def explain_fallback(spec: Spec) -> str:
    """A network on which the first attempt failed, reduced."""
    reduced = reduce(spec, lambda s: falls_back(check(s)))
    return (
        f"seed {spec.seed}: {check(reduced).detail}\n{build(reduced)}\nSpec.from_json({options(reduced).to_json()!r})"
    )


def _work(seed: int) -> tuple[int, Outcome]:
    torch.set_num_threads(1)
    try:
        return seed, check(specification(seed))
    except Exception:
        return seed, Outcome("the test itself", traceback.format_exc(limit=-6))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=10, help="failures to reduce and print")
    given = parser.parse_args()
    start, failed, fallen, attempts, totals = time.monotonic(), {}, [], Counter[int](), Counter[str]()
    with multiprocessing.get_context("spawn").Pool(given.processes) as workers:
        seeds = range(given.seed, given.seed + given.count)
        for done, (seed, outcome) in enumerate(workers.imap_unordered(_work, seeds, chunksize=8), 1):
            if outcome.problem:
                failed[seed] = outcome
            if falls_back(outcome):
                fallen.append(seed)
            attempts[outcome.attempts] += 1
            totals.update(skipped=outcome.skipped, before=outcome.before, after=outcome.after)
            if done % 25 == 0 or done == given.count:
                speed = done / (time.monotonic() - start)
                print(f"\r{done}/{given.count} networks, {speed:.1f}/s, {len(failed)} failed", end="", flush=True)
    print(f"\n{time.monotonic() - start:.0f} s, {totals['skipped']} skipped, attempts needed {dict(attempts)}")
    print(f"parameters {totals['before']} -> {totals['after']}")
    print(f"first attempt failed without sizes in the code: {sorted(fallen)[:40]}")
    print(Counter(outcome.problem for outcome in failed.values()).most_common(), flush=True)
    shown = Counter[str]()
    for seed, outcome in sorted(failed.items()):
        shown[outcome.problem] += 1
        if shown[outcome.problem] <= 2 and sum(shown.values()) <= 4 * given.show:
            print("\n" + explain(specification(seed), outcome), flush=True)
    for seed in sorted(fallen)[: given.show]:
        print("\nfell back: " + explain_fallback(specification(seed)), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
