"""What capture records: values, nodes and module calls."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_NO_CHANNELS, _NO_NUMBERS = np.zeros(0, bool), np.zeros(0)


@dataclass(eq=False, repr=False)
class Value:
    """One tensor of the recorded run, and what is known of its channels."""

    shape: tuple[int, ...]
    """Shape in the recorded run."""
    parameter: str | None = None
    """Qualified name, if it is a parameter or buffer of the model."""
    known: bool = False
    """Whether the whole tensor is the same for every input."""
    touched: bool = False
    """Whether the recorded run computed it from the model's input."""
    number: float | None = None
    """What it holds, if it is a single number that is the same for every input."""
    axis: int | None = None
    """The dimension whose entries are channels; None where no rule tracks them."""
    fixed: Mask = field(default_factory=lambda: _NO_CHANNELS)
    """Channels that are one and the same number everywhere, for every input of every size."""
    numbers: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: _NO_NUMBERS)
    """That number, for fixed channels."""
    same_as: "Value | None" = None
    """A value that this one always equals, entry by entry."""
    labels: "tuple[Value, Tensor] | None" = None
    """For a reshape in progress: the value it comes from, and the channel of that value at every entry."""
    taken_from: "tuple[Value, np.ndarray[Any, np.dtype[np.int64]]] | None" = None
    """For a value that only moves entries of another: that one, and its channel at each channel of this one."""
    need: Mask = field(default_factory=lambda: _NO_CHANNELS)
    """Channels whose contents somebody reads."""
    keep: Mask = field(default_factory=lambda: _NO_CHANNELS)
    """Channels that are physically there after compaction."""

    def __repr__(self) -> str:
        name = self.parameter or ("fixed" if self.known else "value")
        return f"<{name} {self.shape}, channels along {self.axis}: {int(self.fixed.sum())} fixed>"

    @property
    def channels(self) -> int:
        """How many channels, 0 where they are not tracked."""
        return 0 if self.axis is None else self.shape[self.axis]

    @property
    def origin(self) -> "Value":
        """The first value that this one always equals."""
        return self if self.same_as is None else self.same_as.origin

    def track(self, axis: int, fixed: Mask | None = None, data: Tensor | None = None) -> None:
        """Call `axis` the channel axis; the numbers of fixed channels are read off the recorded `data`."""
        self.axis = axis
        count = self.shape[axis]
        self.fixed = np.zeros(count, bool) if fixed is None else fixed
        self.numbers = np.zeros(count)
        if not some(self.fixed):
            return
        self.known = self.known or every(self.fixed)
        if data is not None and data.numel() > 0:
            first = data.as_strided((count,), (data.stride(axis),))
            self.numbers = np.where(self.fixed, np.array(first.tolist(), np.float64), 0.0)

    @property
    def zero(self) -> Mask:
        """Channels that are exactly zero."""
        return np.asarray(self.fixed & (self.numbers == 0))


@dataclass(eq=False)
class Call:
    """One call of a module during the recorded run."""

    name: str
    module: nn.Module
    parent: "Call | None"
    plain: bool = True
    """Whether it got one argument and no more."""
    input: Value | None = None
    """Its first argument, if that is a tensor."""
    output: Value | None = None
    """Its result, if that is one tensor."""
    data: Tensor | None = None
    """That result for one example, if it is the same for every input."""
    first_node: int = 0
    last_node: int = 0
    """Nodes recorded while it ran: from first to last, last excluded."""

    def ancestors(self) -> "Iterator[Call]":
        """This call and those around it, innermost first."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent


@dataclass(eq=False)
class Node:
    """One operation of the recorded run."""

    op: str
    """Canonical name: `relu`, `add`, `conv2d`, ..."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """Arguments as given, tensors replaced by their values."""
    inputs: list[Value]
    """Every tensor among the arguments."""
    outputs: list[Value]
    result: Any
    """What it returned in the recorded run; dropped once facts are derived."""
    call: Call | None
    """Innermost module call around it."""
    redo: Callable[[Tensor], Any] | None = None
    """The operation again, on another first operand."""
    rigid: bool = False
    """Whether it must see the original width, because it was given sizes."""
    layer: Any = None
    """The layer that it is, for operations with weights."""
    rule: Any = None
    """The rule that describes it."""
    operands: list[Any] = field(default_factory=list)
    """What the rule of a pointwise operation found out of its inputs."""
    reason: str = ""
    """Why its operands are kept at full width, if they are."""

    @property
    def output(self) -> Value:
        """The only output."""
        return self.outputs[0]


@dataclass(eq=False)
class Graph:
    """The recorded run."""

    nodes: list[Node]
    calls: list[Call]
    """In the order in which they began."""
    results: list[Value]
    """Tensors that the model returned."""
    tensors: dict[str, Tensor]
    """Parameters and buffers by name."""

    def call_counts(self) -> dict[nn.Module, int]:
        """How often each module was called."""
        counts: dict[nn.Module, int] = {}
        for call in self.calls:
            counts[call.module] = counts.get(call.module, 0) + 1
        return counts


def some(mask: Mask) -> bool:
    """Whether any channel is chosen; several times as quick as `mask.any()`, and asked for each node many times."""
    return bool(np.count_nonzero(mask))


def every(mask: Mask) -> bool:
    """Whether all channels are chosen."""
    return bool(np.count_nonzero(mask) == mask.size)


def all_channels(count: int | tuple[int, ...]) -> Mask:
    """A mask that chooses every channel, or every pair of channels."""
    return np.ones(count, bool)


def as_mask(tensor: Tensor) -> Mask:
    """Where a tensor is not zero, as a mask."""
    return np.asarray(tensor.bool().numpy(force=True))
