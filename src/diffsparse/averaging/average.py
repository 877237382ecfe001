"""`MovingAverage`: an average of a model in training that understands gates and follows the model when it shrinks."""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from diffsparse.averaging.contents import Contents, difference, shapes
from diffsparse.averaging.shrinking import gates_after, in_the_form_of
from diffsparse.averaging.statistics import Measuring
from diffsparse.budget.coupled import multiply
from diffsparse.budget.regate import regate
from diffsparse.compaction import Compacted, compact
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.materialise import materialise
from diffsparse.errors import SparsityError, SparsityWarning, require_module, require_number, require_whole
from diffsparse.example import Example
from diffsparse.gates import named_gates
from diffsparse.module_tree import lazy_tensor, without_wrappers

Model = TypeVar("Model", bound=nn.Module)


class MovingAverage(Generic[Model]):
    r"""An exponential moving average of a model in training, gated or not.

    .. math:: \bar w \leftarrow d\,\bar w + (1 - d)\,w, \qquad d = \min\Bigl(\texttt{decay}, \frac{1 + t}{10 + t}\Bigr)

    after t updates. Weights are averaged one by one, whole numbers copied. Of a gate the *values* are averaged, and
    what is zero in the model now is zero in the average: `compact` removes the same from both. Variances of batch
    norms are averaged as logarithms. Statistics of averaged networks are only rough, so measure them before a test:
    docs/training.md shows why.

    Args:
        model: the model in training; it is copied.
        decay: how slowly the average follows; 0.999 averages over about the last thousand updates.

    Example:
        >>> import diffsparse as ds
        >>> model, x = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(64, 8)
        >>> model = ds.sparsify(model, start=0.5)
        >>> optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)
        >>> average = MovingAverage(model, decay=0.99)
        >>> for _ in range(10):
        ...     loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     average.update(model)
        >>> average.calibrate([x])
        >>> average.model.eval()(x).shape
        torch.Size([64, 2])
    """

    def __init__(self, model: Model, decay: float = 0.999) -> None:
        self.decay = require_number("decay", decay, low=0, high=1)
        model = without_wrappers(require_module("model", model))
        if lazy := lazy_tensor(model):
            raise SparsityError(f"'{lazy}' is lazy and has no size yet; run the model once, then average it")
        self._start(model)

    def _start(self, model: nn.Module) -> None:
        """Begin anew at `model`."""
        self.updates = 0
        """How often `update` was called."""
        self._adopt(duplicate(model))

    @torch.no_grad()
    def _adopt(self, network: nn.Module) -> None:
        """Go on from `network` as the average."""
        self._network = network
        self._mine = Contents(network)
        self._theirs = self._mine
        self._means = {name: value.clone() for name, value in self._mine.derived().items()}
        self._frozen: set[str] = set()
        self._stale = False

    @property
    def model(self) -> Model:
        """The averaged network, to test, compact or save. Ask for it again after updates: this writes its gates."""
        if self._stale:
            self._mine.write(self._means)
            self._stale = False
        return cast(Model, self._network)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards `model`; call it after each step of the optimiser."""
        theirs = self._contents_of(without_wrappers(require_module("model", model)))
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        _move(self._mine.plain, theirs.plain, 1 - decay)
        for mean, value in zip(self._mine.whole, theirs.whole, strict=True):
            mean.copy_(value)
        values = theirs.derived()
        _move(list(self._means.values()), list(values.values()), 1 - decay)
        for name in theirs.gates:
            mean = self._means[name]
            mean.mul_(values[name].to(mean.device) != 0)
        self._frozen = {name for name, norm in theirs.norms.items() if not norm.training}
        self._stale = True

    def _contents_of(self, model: nn.Module) -> Contents:
        """Those of `model`; raises if they do not fit."""
        self._mine, theirs = self._mine.of_now(self._network), self._theirs.of_now(model)
        wanted, given = shapes(self._mine.tensors), shapes(theirs.tensors)
        if given != wanted:
            raise SparsityError(
                f"the model does not fit its average: {difference(wanted, given)}; if the model has become small, call "
                "follow(small) first, with what compact returned or budget.small"
            )
        self._theirs = theirs
        return theirs

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Any], count: int = 20) -> None:
        """Measure the statistics of the averaged network's batch norms; call it before a test and before saving.

        Args:
            batches: inputs of training batches, each a tensor, a tuple of positional arguments or a dictionary of
                keyword arguments: `(x for x, y in loader)`.
            count: how many of them to use; a few are enough.

        The network runs in training mode, without gradients. Batch norms that are frozen, in eval mode in the model
        that is averaged, keep their statistics. Later updates go on from what was measured.
        """
        require_whole("count", count, low=1)
        norms = {name: norm for name, norm in self._mine.norms.items() if name not in self._frozen}
        if not norms:
            return
        network, device = self.model, next(iter(norms.values())).running_var
        assert device is not None
        used = 0
        with torch.random.fork_rng([device.device] if device.is_cuda else []), Measuring(network, norms, self._frozen):
            for batch in islice(batches, count):
                Example.of(batch).run(network)
                used += 1
        if not used:
            raise SparsityError("calibrate needs at least one batch, got none")
        measured = self._mine.derived()
        self._means.update({name: measured[name].clone() for name in norms})

    def follow(self, small: Compacted[Any]) -> None:
        """Become small as the model did: call it once the model that is trained is `small.model`.

        Args:
            small: what `compact(model, ...)` returned, or `budget.small` after the step that made the model small.

        The average keeps its numbers for everything that is left. If that is impossible, because something else than
        gates made the zeros, it starts anew from the small model, with a warning.
        """
        if not isinstance(small, Compacted):
            raise SparsityError(f"follow needs what compact returned, a Compacted, got {small!r:.50}")
        gated = any(True for _ in named_gates(small.model))
        made = replace(small, model=materialise(small.model)) if gated else small
        if small.multiplied:
            made = replace(small, model=duplicate(small.model))
            multiply(made.model, {name: 1 / factor for name, factor in small.multiplied.items()})
        alike = duplicate(self.model)
        Contents(alike).write(self._means | gates_after(self._mine, self._means, made))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SparsityWarning)
            mine = in_the_form_of(made, compact(alike, small.example.inputs))
        if mine is not None:
            multiply(mine.model, small.multiplied)
            self._adopt((regate(alike, mine).small if gated else mine).model)
            return
        warnings.warn(
            "the average cannot be made small in the way the model was, because the model has zeros that do not follow "
            "from its gates; it starts anew from the small model",
            SparsityWarning,
            stacklevel=2,
        )
        self._start(small.model)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a resumed run needs to go on bit for bit, as tensors."""
        state = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        means = {f"means.{name}": tensor for name, tensor in self._means.items()}
        return {"updates": torch.tensor(self.updates), **state, **means}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where `state_dict` was taken, with an average made from a model of the same shape."""
        wanted, given = shapes(self.state_dict()), shapes(state)
        if wanted != given:
            raise SparsityError(f"the state does not fit this average: {difference(wanted, given)}")
        model = {name: tensor for name, tensor in state.items() if name.startswith("model.")}
        self._network.load_state_dict({name.removeprefix("model."): tensor for name, tensor in model.items()})
        for name, mean in self._means.items():
            mean.copy_(state[f"means.{name}"])
        self.updates = int(state["updates"])

    def __getstate__(self) -> dict[str, Any]:
        # the rest is made of what the network holds, and a copy must hold its own
        return {key: value for key, value in vars(self).items() if key not in {"_mine", "_theirs"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._mine = self._theirs = Contents(self._network)

    def __repr__(self) -> str:
        return f"MovingAverage({type(self._network).__name__}, decay={self.decay:g}, {self.updates} updates)"


def _move(means: list[Tensor], values: list[Tensor], weight: float) -> None:
    """Each mean goes the share `weight` of the way to its value."""
    if means:
        placed = [value.to(mean.device, mean.dtype) for mean, value in zip(means, values, strict=True)]
        torch._foreach_lerp_(means, placed, weight)
