"""What a rule says of its operator; the default says nothing and keeps everything."""

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.masks import Mask, every, some
from diffsparse.compaction.rules.tracks import Tracks
from diffsparse.compaction.tensor_slice import TensorSlice


class Rule:
    """Describes one kind of operator to `compact`. This default reads all operands and keeps their full width.

    A subclass overrides three methods, which are called in this order for every recorded call of the operator:

    1. `infer`, while the model runs, from the first call to the last: which channels of the outputs are one number,
       given those of the inputs? It returns False to leave this call to `otherwise`, or to the default.
    2. `needs`, from the last call to the first: which channels of the inputs are read, given `need` of the outputs?
    3. `unify_widths`, again and again until nothing changes: which channels must be present together? A rule only ever
       adds channels to `keep`.

    `needs` and `unify_widths` may run several times per compaction, each time with fresh `need` and `keep`, so a rule
    keeps no state of its own. What they should know from `infer` goes into `node.details`. A rule that is too cautious
    costs width. A rule that is too bold is caught when `compact` compares outputs, and earlier by
    `diffsparse.testing.check_rule`. `EachChannel` is a complete example, and a base for operators with one input.
    """

    reason: ClassVar[str] = "an operation without a rule"
    """Why operands keep their width where `infer` returns False, in words for the user."""
    otherwise: "ClassVar[Rule | None]" = None
    """The rule to ask where `infer` returns False."""
    follows_vectors: ClassVar[bool] = False
    """Whether `unify_widths` says of stored vectors what it says of other operands; they are then cut like them."""
    modules: ClassVar[tuple[type[nn.Module] | str, ...]] = ()
    """Modules that are this operator, and whose attributes `true_attributes` knows; a class that need not be installed
    is given by its full name."""

    def infer(self, node: Node, graph: Graph) -> bool:
        """Call `track` on the outputs; False if this rule does not apply after all."""
        return True

    def needs(self, node: Node) -> None:
        """Add to `need` of the inputs what is read, given `need` of the outputs."""
        for value in node.inputs:
            read_all(value)

    def leans_on(self, node: Node) -> list[tuple[Value, Mask]]:
        """Channels of inputs that are not read if they are gone, but have to be right if they are kept."""
        return []

    def unify_widths(self, node: Node) -> bool:
        """Add to `keep` of inputs and outputs until they fit each other; whether anything changed."""
        return pin([*node.inputs, *node.outputs])

    def tie(self, node: Node, tracks: Tracks) -> None:
        """Say which channels of inputs and outputs are the same ones, or that their order matters."""
        tracks.pin([*node.inputs, *node.outputs])

    def refusal(self, node: Node) -> str:
        """Why operands stay at full width, in words for the user; empty where they do not."""
        return ""

    def slices(self, node: Node, graph: Graph) -> dict[str, TensorSlice]:
        """What stays of the parameters and buffers that the operator takes, by name."""
        return {}

    def macs(self, node: Node, graph: Graph) -> tuple[int, int]:
        """MACs of this call before and after; only those that compaction can make fewer."""
        return 0, 0

    def true_attributes(self, module: Any) -> dict[str, int]:
        """What one of `modules` should say of its widths, from the tensors that it holds."""
        return {}


def is_one_of(module: nn.Module, kinds: tuple[type[nn.Module] | str, ...]) -> bool:
    """Whether the module is of one of these kinds, as `Rule.modules` has them."""
    return not set(kinds).isdisjoint(kinds_of(module))


def kinds_of(module: nn.Module) -> tuple[type | str, ...]:
    """Its class, the bases of it, and the full names of all."""
    kind: Any = type(module)
    return _kinds_of(kind)


@lru_cache(maxsize=1024)
def _kinds_of(kind: Any) -> tuple[type | str, ...]:
    return (*kind.__mro__, *(f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__))


class Opaque(Rule):
    """An operator nobody has described, or one in a form that its rule does not know."""

    def refusal(self, node: Node) -> str:
        return f"{node.op}: {node.reason or self.reason}"


OPAQUE = Opaque()


class EachChannel(Rule):
    """An operator with one input that treats each channel by itself and makes a constant of a constant."""

    reason = "an operation across channels"
    follows_vectors = True

    def infer(self, node: Node, graph: Graph) -> bool:
        source, out = node.inputs[0], node.output
        if source.axis is None or out.shape != source.shape:
            return False
        out.track(source.axis, source.fixed, node.result)
        return True

    def needs(self, node: Node) -> None:
        node.inputs[0].need |= node.output.need

    def unify_widths(self, node: Node) -> bool:
        return unite([node.inputs[0], node.output])

    def tie(self, node: Node, tracks: Tracks) -> None:
        tracks.pin(node.inputs[1:])
        tracks.tie(node.inputs[0], node.output)


def read_all(value: Value) -> None:
    """Everything of `value` is read."""
    value.need[:] = True


def pin(values: list[Value]) -> bool:
    """Keep all channels of these values; whether anything changed."""
    narrow = [value for value in values if value.axes is not None and not every(value.keep)]
    for value in narrow:
        value.keep[:] = True
    return bool(narrow)


def unite(values: list[Value]) -> bool:
    """Keep the same channels in all of these values from now on, by one shared mask; whether anything changed."""
    first = values[0].keep
    changed = False
    for value in values[1:]:
        if value.keep is not first:
            changed = changed or some(value.keep != first)
            first |= value.keep
            value.keep = first
    return changed


def widen(value: Value, mask: Mask) -> bool:
    """Keep these channels of `value`, too; whether anything changed."""
    if not some(mask > value.keep):
        return False
    value.keep |= mask
    return True


_NUMPY_NAMES = {"dim": "axis", "keepdim": "keepdims", "input": "x"}


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of the recorded call, given by position, by name or by the name that numpy has for it."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, node.kwargs.get(_NUMPY_NAMES.get(name, name), default))


_NUMBERS = (int, float)
_TAKE_NUMBERS = {
    *("add", "sub", "rsub", "mul", "div", "rdiv", "rtruediv", "pow", "rpow"),
    *("clamp", "clip", "clamp_min", "clamp_max", "threshold", "where", "masked_fill", "lerp", "addcmul"),
    *("gt", "ge", "lt", "le", "eq", "ne", "maximum", "minimum"),
}


def takes_number(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call takes a Python number, which may come from the size or the data of the input."""
    return op in _TAKE_NUMBERS and bool(numbers_in(args, kwargs))


def numbers_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[float]:
    """The Python numbers that a call takes."""
    return [arg for arg in (*args, *kwargs.values()) if isinstance(arg, _NUMBERS)]


def numbers_along(tensor: Tensor, dim: int) -> tuple[Mask, np.ndarray[Any, np.dtype[np.float64]]]:
    """For each entry along `dim`: whether the tensor is one number there, and which."""
    rows = tensor.detach().double().movedim(dim, 0).reshape(tensor.shape[dim], -1)
    return (rows == rows[:, :1]).all(1).cpu().numpy(), rows[:, 0].cpu().numpy()
