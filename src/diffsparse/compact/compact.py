"""`compact`: from a gated model to a smaller one that computes the same."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.compact.adaptors import FILL, Constant, ConstantMap
from diffsparse.compact.analyse import Analysis
from diffsparse.compact.apply import apply_plan
from diffsparse.compact.bake import bake
from diffsparse.compact.capture import capture
from diffsparse.compact.plan import Plan
from diffsparse.compact.planner import Numbers, make_plan
from diffsparse.compact.verify import default_tolerance, largest_difference
from diffsparse.errors import SparsityError


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """A compact model and how it came about."""

    model: nn.Module
    """The user's own module tree with smaller layers and no gates."""
    plan: Plan
    """What was done to each layer."""
    max_difference: float
    """Largest difference from the original seen, relative to the largest output."""


# How far the code between layers is trusted to work at other widths: first fully, at last not at all.
_ATTEMPTS = ({"narrow": True, "trusting": True}, {"narrow": True, "trusting": False}, {"narrow": False, "trusting": False})


def compact(
    model: nn.Module,
    example_inputs: Any,
    *,
    tolerance: float | None = None,
    round_to: int = 1,
    strict: bool = False,
) -> Compacted:
    """Remove every channel that cannot matter; the returned model computes the same for every input."""
    args, kwargs = split_example(example_inputs)
    baked = bake(model)
    training = {name: module.training for name, module in baked.named_modules()}
    baked.eval()
    graph, _ = capture(baked, args, kwargs)
    limit = default_tolerance(baked) if tolerance is None else tolerance
    problem: Exception | None = None
    for attempt in _ATTEMPTS:
        plan, numbers = make_plan(Analysis(graph, round_to=round_to, **attempt))
        if strict and plan.kept:
            raise SparsityError(f"kept at full width, which strict=True forbids:\n{plan}")
        small = apply_plan(copy.deepcopy(baked), plan)
        write_numbers(small, numbers)
        try:
            worst = largest_difference(baked, small, args, kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            problem = error
            continue
        if worst <= limit:
            for name, module in small.named_modules():
                module.training = training.get(name, model.training)
            return Compacted(model=small, plan=plan, max_difference=worst)
        problem = SparsityError(f"outputs differ by {worst:.3g} relative, more than the tolerance of {limit:g}")
    raise SparsityError(f"{type(model).__name__} could not be compacted without changing it: {problem}") from problem


def split_example(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of an example: a tensor, a tuple of arguments or a dictionary of them."""
    if isinstance(example, dict):
        return (), example
    return (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


@torch.no_grad()
def write_numbers(model: nn.Module, numbers: Numbers) -> None:
    """Write folded biases, fills and constants into a model that a plan was applied to."""
    modules = dict(model.named_modules())
    for name, extra in numbers.bias.items():
        bias = modules[name].bias
        assert isinstance(bias, Tensor)
        bias.copy_(bias.double() + extra.to(bias.device))
    for name, fill in numbers.fill.items():
        modules[name].get_buffer(FILL).copy_(fill)
    for name, constant in numbers.constant.items():
        stand_in = modules[name]
        assert isinstance(stand_in, Constant | ConstantMap)
        (stand_in.map if isinstance(stand_in, ConstantMap) else stand_in.numbers).copy_(constant)
