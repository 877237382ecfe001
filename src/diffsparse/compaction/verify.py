"""Run the original and the compact model, and compare."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.example import map_tensors, tensors_in
from diffsparse.module_tree import modules_by_name, undisturbed

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def default_tolerance(model: nn.Module) -> float:
    """What float rounding may change, relative to the largest output, for the dtype of the model."""
    held = [p for module in modules_by_name(model).values() for p in module._parameters.values() if p is not None]
    dtypes = {p.dtype for p in held if p.is_floating_point()}
    return max((TOLERANCE.get(dtype, 1e-4) for dtype in dtypes), default=1e-4)


def difference(expected: Any, got: Any) -> float:
    """Largest difference between two outputs, relative to the largest entry of the expected one."""
    first, second = list(tensors_in(expected)), list(tensors_in(got))
    if len(first) != len(second):
        raise SparsityError(f"the compact model returns {len(second)} tensors, the original {len(first)}")
    return max(map(_difference, first, second), default=0.0)


def _difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        raise SparsityError(f"the compact model returns shape {tuple(b.shape)}, the original {tuple(a.shape)}")
    if not a.is_floating_point():
        return float(not torch.equal(a, b))
    a, b, odd = a.double(), b.double(), ~torch.isfinite(a)
    # infinities and NaN must be in the same places
    if not torch.equal(odd, ~torch.isfinite(b)) or not torch.equal(a[odd].nan_to_num(), b[odd].nan_to_num()):
        return float("inf")
    if bool(odd.all()):
        return 0.0
    apart, scale = (a - b)[~odd].abs().max().item(), a[~odd].abs().max().item()
    return apart / scale if scale > 0 else apart


class Trials:
    """Inputs and the outputs of the original for them.

    There are two inputs: the example, and random numbers with one more sample and another size, if the original takes
    them. Random numbers that the model itself draws are the same each time.

    Args:
        args: positional arguments of the example.
        kwargs: its keyword arguments.
        answer: what the original gave for the example, under `same_draws`.
        tolerance: largest relative difference to accept.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any, tolerance: float) -> None:
        self.tolerance = tolerance
        self._example, self._answer = (args, kwargs), answer
        self._others: dict[bool, list[tuple[Any, Any]]] = {}

    def note_answers(self, original: nn.Module, *, any_size: bool = True) -> None:
        """Run the original, before anything is done to it; `any_size` as for the compact model."""
        if any_size in self._others:
            return
        self._others[any_size] = []
        for trial in _trials(self._example, any_size):
            try:
                answer = run_on_copies(original, trial)
            except Exception:
                # whatever the user's model raises, it does not take this input
                continue
            self._others[any_size] = [(trial, answer)]
            # NaN everywhere would hide a difference
            if all(bool(torch.isfinite(tensor).any()) for tensor in tensors_in(answer)):
                return

    def check_ordinary_form(self, model: nn.Module) -> None:
        """Raise if `model` itself, with its gates, does not give the noted answer for the example."""
        with undisturbed(model, device=next(tensors_in(self._example)).device):
            apart = difference(run_on_copies(model, self._example), self._answer)
        if not apart <= self.tolerance:
            raise SparsityError(
                f"materialise() of a gated module in {type(model).__name__} gives another function: outputs differ by "
                f"{apart:.3g} relative; the tolerance is {self.tolerance:g}"
            )

    def check(self, compacted: nn.Module, *, any_size: bool = True) -> float:
        """The largest difference; raise if it is more than the tolerance."""
        apart = self.largest_difference(compacted, any_size=any_size)
        if not apart <= self.tolerance:
            raise SparsityError(f"outputs differ by {apart:.3g} relative; the tolerance is {self.tolerance:g}")
        return apart

    def largest_difference(self, compacted: nn.Module, *, any_size: bool = True) -> float:
        """Largest relative difference of the outputs; other sizes are left out unless `any_size`."""
        trials = [(self._example, self._answer), *self._others[any_size]]
        return max(difference(answer, run_on_copies(compacted, trial)) for trial, answer in trials)


@contextmanager
def same_draws() -> Iterator[None]:
    """No gradients, and the same random numbers each time; the random state is restored afterwards."""
    # torch.manual_seed spends time on devices that do not exist
    seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    with torch.no_grad(), torch.random.fork_rng():
        seed(0)
        yield


def copied(thing: Any) -> Any:
    """`thing` with copies of its tensors, so that a model may write to them."""
    return map_tensors(torch.clone, thing)


def run_on_copies(model: nn.Module, trial: Any) -> Any:
    """What the model gives for positional and keyword arguments, under `same_draws`."""
    args, kwargs = copied(trial)
    with same_draws():
        return model(*args, **kwargs)


def _trials(example: Any, any_size: bool) -> Iterator[Any]:
    """Inputs to try, the most telling first; smaller sizes than the example's show as much as larger ones."""
    generator = torch.Generator().manual_seed(0)
    if any_size:
        yield random_like(_one_more(_resized(example, 4)), generator)
        yield random_like(_one_more(_resized(example, 2)), generator)
        yield random_like(_resized(example, 2), generator)
        yield random_like(_one_more(_resized(example, 1)), generator)
    yield random_like(_one_more(example), generator)
    yield random_like(example, generator)
    # for a model that does not take random numbers
    if any_size:
        yield _one_more(_resized(example, 1))
    yield _one_more(example)


def random_like(thing: Any, generator: torch.Generator) -> Any:
    """Random numbers in place of floating-point tensors; everything else as it is."""

    def draw(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor)

    return map_tensors(draw, thing)


def _one_more(thing: Any) -> Any:
    """Tensors with their first sample added at the end."""
    return map_tensors(lambda tensor: torch.cat([tensor, tensor[:1]]) if tensor.dim() > 0 else tensor, thing)


def _resized(thing: Any, divisor: int) -> Any:
    """Images of about a quarter (4) or half (2) of each spatial size, or one pixel larger (1 and small images)."""

    def new_size(size: int) -> int:
        parts = [part for part, least in ((4, 8), (2, 2)) if part <= divisor and size > least]
        return size // parts[0] + 1 if parts else size + 1

    def resize(tensor: Tensor) -> Tensor:
        if tensor.dim() < 3 or not tensor.is_floating_point():
            return tensor
        more = [new_size(size) - size for size in reversed(tensor.shape[2:])]
        return F.pad(tensor, [n for by in more for n in (0, by)], value=0.5)

    return map_tensors(resize, thing)
