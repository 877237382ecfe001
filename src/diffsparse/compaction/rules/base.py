"""What a rule says of its operator; the default says nothing and keeps everything."""

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from diffsparse.compaction.graph import Graph, Mask, Node, Value, every, some


class Rule:
    """The least that can be said of an operator: it reads all of its operands, at their full width.

    Subclasses describe one kind of operator in three sentences: which channels of the output are fixed given the
    input's (`infer`), which channels of the inputs are read given what is read of the output (`needs`), and which
    channels must be physically there together (`unify_widths`).
    """

    reason: ClassVar[str] = "an operation without a rule"

    def infer(self, node: Node, graph: Graph) -> bool:
        """Say what is known of the outputs; False if this rule does not apply after all."""
        return True

    def needs(self, node: Node) -> None:
        """Mark the channels of the inputs that are read, given those of the outputs."""
        for value in node.inputs:
            read_all(value)

    def unify_widths(self, node: Node) -> bool:
        """Make the channels that are physically there fit each other; whether anything changed."""
        return pin([*node.inputs, *node.outputs])

    def refusal(self, node: Node) -> str:
        """Why operands stay at full width, in words for the user; empty where they do not."""
        return ""


class Opaque(Rule):
    """An operator nobody has described, or one in a form that its rule does not know."""

    def refusal(self, node: Node) -> str:
        return f"{node.op}: {node.reason or self.reason}"


OPAQUE = Opaque()


def tracked(value: Value) -> Value:
    """The value whose channels `value` shows: itself, or where a reshape in progress started."""
    return value if value.channel_of_entry is None else value.channel_of_entry[0]


def read_all(value: Value) -> None:
    """Everything of `value` is read."""
    tracked(value).need[:] = True


def pin(values: list[Value]) -> bool:
    """All channels of these values are physically there."""
    changed = False
    for value in map(tracked, values):
        if value.axis is not None and not every(value.keep):
            value.keep[:] = True
            changed = True
    return changed


def unite(values: list[Value]) -> bool:
    """The same channels are physically there in all of these values, from now on: they share one mask."""
    first = values[0].keep
    changed = False
    for value in values[1:]:
        if value.keep is not first:
            changed = changed or some(value.keep != first)
            first |= value.keep
            value.keep = first
    return changed


def widen(value: Value, mask: Mask) -> bool:
    """These channels of `value`, too, are physically there."""
    if not some(mask > value.keep):
        return False
    value.keep |= mask
    return True


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of the recorded call, given by position, by name or by the name that numpy has for it."""
    if len(node.args) > position:
        return node.args[position]
    if name in node.kwargs:
        return node.kwargs[name]
    return node.kwargs.get(_NUMPY_NAMES.get(name, name), default)


_NUMPY_NAMES = {"dim": "axis", "keepdim": "keepdims", "input": "x"}


def numbers_along(tensor: Tensor, dim: int) -> tuple[Mask, np.ndarray[Any, np.dtype[np.float64]]]:
    """For each entry along `dim`: whether the tensor is one number there, and which."""
    rows = tensor.detach().double().movedim(dim, 0).reshape(tensor.shape[dim], -1)
    return (rows == rows[:, :1]).all(1).cpu().numpy(), rows[:, 0].cpu().numpy()
