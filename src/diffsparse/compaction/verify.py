"""Run the original and the compact model, and compare."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.compaction.capture import capture
from diffsparse.compaction.graph import Graph
from diffsparse.compaction.numbers_used import Numbers, NumbersUsed
from diffsparse.compaction.trial_inputs import at_other_sizes, other_inputs, with_one_sample, with_other_masks
from diffsparse.errors import SparsityError
from diffsparse.example import map_tensors, tensors_in
from diffsparse.module_tree import modules_by_name
from diffsparse.undisturbed import State, undisturbed

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
        numbers: the Python numbers that the original used for the example, if the other model must use the same.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        answer: Any,
        tolerance: float,
        numbers: Numbers | None = None,
    ) -> None:
        self.tolerance, self.numbers = tolerance, numbers
        self._example, self._answer = (args, kwargs), answer
        self._other: list[tuple[Any, Any]] | None = None

    def note_answers(self, original: nn.Module) -> None:
        """Run the original, before anything is done to it."""
        if self._other is not None:
            return
        self._other = []
        for trial in other_inputs(self._example):
            try:
                answer = self._run_undisturbed(original, trial)
            except Exception:
                # whatever the user's model raises, it does not take this input
                continue
            self._other = [(trial, answer)]
            # NaN everywhere would hide a difference
            if all(bool(torch.isfinite(tensor).any()) for tensor in tensors_in(answer)):
                return
        if not self._other:
            self._other = [(self._example, self._run_undisturbed(original, self._example))]
        self._require_numbers(self._other[0][1])

    def add_other_masks(self, original: nn.Module) -> None:
        """Compare with other masks, too."""
        trial = with_other_masks(self._example)
        self.note_answers(original)
        assert self._other is not None
        self._other.append((trial, self._run_undisturbed(original, trial)))

    def add_other_sizes(self, original: nn.Module) -> None:
        """Compare at more sizes, too."""
        self.note_answers(original)
        assert self._other is not None
        for trial in (*at_other_sizes(self._example), with_one_sample(self._example)):
            try:
                self._other.append((trial, self._run_undisturbed(original, trial)))
            except Exception:
                # whatever the user's model raises, it does not take this input
                continue

    def recording(self, model: nn.Module) -> Graph:
        """The graph of a model on the example."""
        with same_draws():
            return capture(model, *copied(self._example))[0]

    def run_example(self, model: nn.Module) -> Any:
        """What a model gives for the example."""
        return run_on_copies(model, self._example)

    def _run_undisturbed(self, model: nn.Module, trial: Any) -> Any:
        with undisturbed(model, device=next(tensors_in(trial)).device, hooks=True):
            return run_on_copies(model, trial)

    def _require_numbers(self, answer: Any) -> None:
        """Raise if an output is NaN everywhere, both in this answer and in that for the example."""
        for number, several in enumerate(zip(tensors_in(answer), tensors_in(self._answer), strict=False)):
            if all(tensor.numel() and bool(tensor.isnan().all()) for tensor in several):
                raise SparsityError(f"output {number} of the model is NaN everywhere, so nothing can be compared")

    def check_copy(self, model: nn.Module, copy: nn.Module | None = None) -> None:
        """Raise if a copy of `model` does not give the same answers: for the example, and for others if it is given."""
        pairs: list[tuple[Any, Callable[[], Any]]] = [
            (self._answer, lambda: self._run_undisturbed(model, self._example))
        ]
        if copy is not None:
            pairs += [(answer, partial(run_on_copies, copy, trial)) for trial, answer in self._other or ()]
        try:
            apart = max(difference(answer, run()) for answer, run in pairs)
        except SparsityError:
            apart = float("inf")
        if not apart <= self.tolerance:
            raise SparsityError(
                f"a copy of {type(model).__name__} with evaluated gates gives another function than the model itself: "
                f"outputs differ by {apart:.3g} relative; the tolerance is {self.tolerance:g}. Look for hooks and "
                "functions that reach the model through a global variable or a class attribute, for results that "
                "depend on earlier calls, and for a materialise() of yours that is not exact"
            )

    def check(self, compacted: nn.Module, numbers: Numbers | None = None) -> float:
        """The largest difference; raise if it is more than the tolerance, or if other numbers were used.

        `numbers` are those that are fine, if they are not those of the original.
        """
        apart = self.largest_difference(compacted, numbers)
        if not apart <= self.tolerance:
            raise SparsityError(f"outputs differ by {apart:.3g} relative; the tolerance is {self.tolerance:g}")
        return apart

    def largest_difference(self, compacted: nn.Module, numbers: Numbers | None = None) -> float:
        """Largest relative difference of the outputs."""
        state = State(compacted, own_code=True)
        with NumbersUsed() as used:
            apart = difference(self._answer, run_on_copies(compacted, self._example))
        if (known := self.numbers if numbers is None else numbers) is not None:
            used.require_among(known, self.tolerance)
        for trial, answer in self._other or ():
            # a model may adjust itself to what it is given
            state.restore()
            apart = max(apart, difference(answer, run_on_copies(compacted, trial)))
        state.restore()
        return apart


@contextmanager
def same_draws() -> Iterator[None]:
    """No gradients, no autocast, and the same random numbers each time; all is restored afterwards."""
    # torch.manual_seed spends time on devices that do not exist
    seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    with torch.no_grad(), torch.random.fork_rng(), ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
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
