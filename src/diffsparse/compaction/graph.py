"""What capture records: values, nodes and module calls."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor, nn

from diffsparse.compaction.masks import NO_CHANNELS, Mask, as_array, every, some
from diffsparse.module_tree import modules_by_name, tensors_by_name

if TYPE_CHECKING:
    from diffsparse.compaction.channel_maps import ChannelMaps
    from diffsparse.compaction.constants import Constants

Shape: TypeAlias = tuple[int, ...]

_NO_NUMBERS = np.zeros(0)


class Value:
    """One tensor of the recorded run, and what is known of its channels.

    A rule's `infer` calls `track`, which sets `axes`, `fixed` and `numbers`; its `needs` adds to `need`, and its
    `unify_widths` adds to `keep`. All masks have one entry per channel of the original tensor. Channels usually lie
    along one dimension. Behind a view of them as (heads, size) they lie along two: there is a channel for each pair,
    and masks are flattened over the pairs. What can leave such a tensor are whole indices of one dimension, so `keep`
    has to be a product of one mask per dimension.

    Args:
        shape: in the recorded run.
        parameter: qualified name, if it is a parameter or buffer of the model.
        known: whether the whole tensor is the same for every input.
        depends_on_input: whether the recorded run computed it from the model's input.
    """

    # defaults are class attributes, because there are thousands of values
    axes: Shape | None = None
    """The dimensions along which channels lie, rising; empty for a single channel, None if no rule tracks them."""
    axis: int | None = None
    """The only one of `axes`; None if there is not just one, which most rules leave to others."""
    fixed: Mask = NO_CHANNELS
    """Channels that are one number at every entry, for every input of every size. Shared: do not write to it."""
    numbers: np.ndarray[Any, np.dtype[np.float64]] = _NO_NUMBERS
    """That number, for fixed channels."""
    mapped: Mask = NO_CHANNELS
    """Channels that vary with the position and with nothing else, at every size; empty if there are none."""
    carried: Mask = NO_CHANNELS
    """Channels that are sums of `shares` times patterns that vary with the position, the same ones for all of them and
    for every input of a size; empty if there are none."""
    shares: np.ndarray[Any, np.dtype[np.float64]] = _NO_NUMBERS
    """(channels, patterns): how much of each pattern there is in each channel."""
    need: Mask = NO_CHANNELS
    """Channels whose contents are read."""
    keep: Mask = NO_CHANNELS
    """Channels that are physically there after compaction; several values may share one mask."""
    widths: "dict[int, int] | None" = None
    """By dimension, how many indices stay, where the other axes have different ones; None where they have the same."""
    number: float | None = None
    """What it holds, if it is a single number that was computed from parameters and buffers alone."""
    contents: "Callable[[], Tensor | None]" = staticmethod(lambda: None)
    """The tensor itself while it lives, if it was computed from parameters and buffers alone."""
    discrete: bool = False
    """Whether it holds no floating-point numbers; noted of what operators made."""
    of_masks: bool = False
    """Whether it follows from masks among the inputs, and from nothing else that is given to the model."""
    same_as: "Value | None" = None
    """A value that this one always equals, entry by entry."""
    taken_from: "tuple[Value, np.ndarray[Any, np.dtype[np.int64]]] | None" = None
    """For a value that only moves entries of another: that one, and its channel at each channel of this one."""

    def __init__(
        self, shape: Shape, *, parameter: str | None = None, known: bool = False, depends_on_input: bool = False
    ) -> None:
        self.shape, self.parameter = shape, parameter
        self.known, self.depends_on_input = known, depends_on_input

    def __repr__(self) -> str:
        name = self.parameter or ("fixed" if self.known else "value")
        along = self.axes if self.axis is None else self.axis
        return f"<{name} {self.shape}, channels along {along}: {int(self.fixed.sum())} fixed>"

    @property
    def channels(self) -> int:
        """How many there are; 0 if they are not tracked."""
        return len(self.fixed)

    @property
    def grid(self) -> Shape:
        """Its shape along `axes`, and 1 elsewhere: masks of this shape broadcast as the tensor does."""
        assert self.axes is not None
        return tuple(n if dim in self.axes else 1 for dim, n in enumerate(self.shape))

    @property
    def origin(self) -> "Value":
        """The first value that this one always equals."""
        return self if self.same_as is None else self.same_as.origin

    def track(self, axes: int | Shape, fixed: Mask | None = None, data: Tensor | None = None) -> None:
        """Say that channels lie along `axes` and which are fixed; their numbers are read off the recorded `data`."""
        if isinstance(axes, int):
            self.axis, self.axes, count = axes, (axes,), self.shape[axes]
        else:
            self.axis, self.axes = axes[0] if len(axes) == 1 else None, axes
            count = prod(self.shape[axis] for axis in axes)
        self.numbers = np.zeros(count)
        self.fixed = np.zeros(count, bool) if fixed is None else fixed
        if not some(self.fixed):
            return
        self.known = self.known or every(self.fixed)
        if data is not None and 0 not in self.shape:
            first = tuple(slice(None) if dim in self.axes else 0 for dim in range(len(self.shape)))
            # from another device, fetch no more than this
            shown = as_array(data)[first] if data.is_cpu else as_array(data[first])
            np.copyto(self.numbers, shown.reshape(-1), where=self.fixed)

    def carry(self, carried: Mask, shares: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Say which channels are made of common patterns; those that are fixed are known better."""
        shares = shares.reshape(len(carried), -1)
        carried = carried & ~self.fixed & (shares != 0).any(1)
        if some(carried):
            self.carried, self.shares = carried, shares

    @property
    def dim(self) -> int:
        """The axis of tracked channels, counted from the end."""
        assert self.axis is not None
        return self.axis - len(self.shape)

    @property
    def zero(self) -> Mask:
        """Channels that are exactly zero."""
        return np.asarray(self.fixed & (self.numbers == 0))


_NO_TENSOR = Value(())


@dataclass(eq=False)
class Call:
    """One call of a module during the recorded run."""

    name: str
    module: nn.Module
    parent: "Call | None"
    first_node: int
    last_node: int = 0
    """Nodes recorded while it ran: from first to last, last excluded."""
    plain: bool = True
    """Whether it got one argument and no more."""
    input: Value = _NO_TENSOR
    """Its first argument, if that is a tensor."""
    output: Value = _NO_TENSOR
    """Its result, if that is one tensor."""

    @property
    def of_torch(self) -> bool:
        """Whether it is a layer of torch's own, which takes its numbers from attributes."""
        return type(self.module).__module__.startswith("torch.nn.modules.")


@dataclass(eq=False, repr=False)
class Node:
    """One operation of the recorded run: a call of a torch function."""

    op: str
    """Canonical name: `relu`, `add`, `conv2d`, ..."""
    args: tuple[Any, ...]
    """Positional arguments, with a `Value` for each tensor; `rules.argument` finds one by position or name."""
    kwargs: dict[str, Any]
    """Keyword arguments likewise."""
    inputs: list[Value]
    """Every tensor among the arguments."""
    outputs: list[Value]
    """Every tensor that it made."""
    result: Any
    """What it returned in the recorded run; gone after `infer`."""
    call: Call | None
    """The innermost module call around it."""
    func: Any = None
    """The torch function that was called."""
    after_sizes: bool = False
    """Whether the model's own code had asked for sizes or data before, so that numbers may have been computed."""
    rule: Any = None
    """The rule that describes it."""
    redo: Callable[..., Any] | None = None
    """Runs the operation again, with other tensors in place of its first inputs; gone after `infer`."""
    details: Any = None
    """What `infer` noted for the other methods of the rule."""
    layer: Any = None
    """The layer that it is, for operations with weights."""
    sealed: bool = False
    """Whether it is part of a function that was given the widths of its operands."""
    heads: bool = False
    """Whether it may get fewer heads, or narrower pieces; sizes that its module holds are changed with them."""
    within: bool = False
    """Whether heads may get narrower, too, if it may get fewer."""
    rigid: bool = False
    """Whether it must see the original width, because it was given sizes."""
    reason: str = ""
    """Why its operands keep their full width, if they do."""

    @property
    def output(self) -> Value:
        """The only output, or the first of several."""
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
    """Parameters and buffers, by name."""
    modules: dict[str, nn.Module] = field(default_factory=dict)
    trusted: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """By the place of a node: its operator and the numbers that it takes, if these are assumed to be the same at every
    input."""
    constants: "Constants | None" = None
    """What varies with the position and with nothing else; `constants_of` finds it."""
    maps: "ChannelMaps | None" = None
    """The same of single channels; `channel_maps_of` finds it."""
    sizes_tried: bool = False
    """Whether several other sizes of the input were tried, because code asks for sizes."""
    masks_tried: bool = False
    """Whether other masks than those of the example were tried."""
    strangers: list[Tensor] = field(default_factory=list)
    """Tensors that were used and are neither inputs nor parameters, and were not made while recording."""
    exposed: list[Value] = field(default_factory=list)
    """Values whose memory was written to, or is that of a tensor that the model returned."""

    def is_exposed(self, value: Value) -> bool:
        """Whether code may change the tensor, inside of the model or outside."""
        return any(other.origin is value.origin for other in self.exposed)

    def attach(self, model: nn.Module) -> None:
        """Take modules and tensors from `model`, another copy of the recorded model."""
        self.modules = modules_by_name(model)
        self.tensors = tensors_by_name(self.modules)
        for call in self.calls:
            call.module = self.modules[call.name]

    def reads_of_data(self, of_masks: bool) -> list[Node]:
        """Nodes that read data that depends on the input: on masks alone, or on anything else."""
        reads = [node for node in self.nodes if not node.outputs and any(v.depends_on_input for v in node.inputs)]
        return [n for n in reads if of_masks == all(v.of_masks for v in n.inputs if v.depends_on_input)]

    @property
    def constant(self) -> bool:
        """Whether the output is the same for every input."""
        return all(map(is_constant, self.results))

    def call_counts(self) -> dict[nn.Module, int]:
        """How often each module was called."""
        return Counter(call.module for call in self.calls)


def is_constant(value: Value) -> bool:
    """Whether it is the same for every input."""
    return value.known or (value.axes is not None and every(value.fixed))


def read_counts(nodes: Iterable[Node], results: Iterable[Value]) -> Counter[int]:
    """How often each value, by its `id`, is read by one of the nodes or returned."""
    return Counter(id(value) for value in [*(v for node in nodes for v in node.inputs), *results])
