"""What is known of a node with weights."""

import numpy as np

from diffsparse.compaction.graph import Call, Mask, Node, Value
from diffsparse.compaction.rules.base import argument, pin, read_all, unite, widen

_NO_CHANNELS = np.zeros(0, bool)


class Layer:
    """A node with weights.

    A layer that is a module of its own, called once, is *free*: a select in front of it takes just the channels it
    reads, an expand behind it puts fixed channels back, and fixed inputs fold into its bias. Any other layer (weights
    used directly, or twice) takes the width that its operands have.

    Args:
        input: what its facts are derived from: `given`, or a stand-in of which nothing is known.
        output: what it makes.
        tensors: role (weight, bias, running_mean, ...) to qualified name.
        given: the operand, where its channels do not lie as the layer has them.
    """

    # what a layer starts with lies in the class: there are hundreds of them
    call: Call | None = None
    """The module call that is this layer and nothing else, if it is free."""
    free: bool = False
    """Whether a select, an expand and a bias can be put around it."""
    mixes: bool = False
    """Whether an output reads several inputs: a convolution or a linear layer, no batch norm."""
    inputs: int = 0
    """How many inputs there are, if it mixes them."""
    pairs: Mask | None = None
    """(outputs, inputs of a group): whether any weight between them is not zero; None if that is so everywhere."""
    groups: int = 1
    transposed: bool = False
    eps: float = 0.0
    """Of a batch norm."""
    ragged: bool = False
    """Whether its groups keep different sizes."""
    folds: bool = False
    """Whether a fixed input other than zero has the same effect at every pixel."""
    twins: "tuple[Layer, ...]" = ()
    """Layers with the same weights, this one included; empty if there is no other."""
    pinned: bool = False
    """Whether something else, too, uses its weights."""
    rows: Mask = _NO_CHANNELS
    """Outputs that it computes after compaction."""
    columns: Mask = _NO_CHANNELS
    """Inputs that it takes after compaction."""

    def __init__(self, input: Value, output: Value, tensors: dict[str, str], given: Value | None = None) -> None:
        self.input = input
        self.output = output
        self.tensors = tensors
        self.given = given

    @property
    def operand(self) -> Value:
        """The tensor that goes in."""
        return self.input if self.given is None else self.given

    def read_operand(self) -> None:
        """Mark what the columns need of the operand."""
        if self.given is not None:
            read_all(self.given)
        elif self.input.axis is not None:
            self.input.need |= self.columns

    def keep_operand(self) -> bool:
        """Keep of the operand what a select takes from it, or all where its channels lie otherwise."""
        if self.given is not None:
            return pin([self.given])
        return self.free and self.input.axis is not None and widen(self.input, self.columns)

    def agree(self) -> bool:
        """Give all uses of the same weights the same widths; whether anything changed."""
        twins = self.twins or (self,)
        inputs, outputs = [twin.operand for twin in twins], [twin.output for twin in twins]
        if self.pinned:
            return pin([*inputs, *outputs])
        changed = False
        for values in (inputs, outputs):
            if len(values) > 1:
                odd = any(v.axis is None for v in values) or any(twin.given is not None for twin in twins)
                changed |= pin(values) if odd else unite(values)
        return bool(changed)


def layer_of(node: Node, axis: int, roles: dict[str, tuple[int, str]]) -> Layer | None:
    """The layer of a node, from the position and keyword of each role; None if a role is not a parameter itself.

    An operand whose channels do not lie along `axis` is read whole, through a stand-in.
    """
    names = {}
    for role, (position, keyword) in roles.items():
        value = node.args[position] if position < len(node.args) else node.kwargs.get(keyword)
        if value is None:
            continue
        if not isinstance(value, Value) or value.parameter is None:
            return None
        names[role] = value.parameter
    source: Value = argument(node, 0, "input")
    if source.channel_of_entry is None and (source.axis is None or source.axis == axis):
        return Layer(source, node.output, names)
    return Layer(Value(source.shape, depends_on_input=True), node.output, names, given=source)
