"""A linear layer that uses a part of a weight which belongs to others, too: an output layer tied to the embeddings."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.compaction.actions import Slice
from diffsparse.compaction.edit import ModelEdit
from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.masks import NO_CHANNELS, how_many
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.tensor_slice import Indices

LEAST_GAIN = 8
"""To pick a part of a weight takes time at each call; it pays if at least one of so many inputs is dead."""
_ROWS, _COLUMNS = "row_index", "column_index"


class PartOfLinear(nn.Linear):
    """Picks its rows and columns from the whole weight at each call, so that the weight stays tied."""

    def forward(self, input: Tensor) -> Tensor:
        """As that of `nn.Linear`, with fewer inputs and outputs."""
        weight: Tensor = self.weight
        for dim, key in ((0, _ROWS), (1, _COLUMNS)):
            index: Any = getattr(self, key)
            weight = weight if index is None else weight.index_select(dim, index)
        return F.linear(input, weight, self.bias)


@dataclass(frozen=True, kw_only=True)
class BorrowedSlice(Slice):
    """The layer loses inputs and outputs, its weight does not."""

    tag: ClassVar = "part of a shared weight"

    rows: Indices | None = None
    """Outputs that it computes; None for all."""
    columns: Indices | None = None
    """Inputs that it takes; None for all."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        module = edit.modules[name]
        # in place, so that hooks stay
        module.__class__ = PartOfLinear
        for key, chosen in ((_ROWS, self.rows), (_COLUMNS, self.columns)):
            index = None if chosen is None else edit.index(chosen, edit.sample(name).device)
            module.register_buffer(key, index, persistent=False)
        super().apply(edit, name)


def may_borrow(node: Node, layer: Layer, graph: Graph) -> bool:
    """Whether a linear layer, which is one module and nothing else, should pick a part of a weight that others use."""
    call, known = node.call, layer.input.fixed if layer.given is None else NO_CHANNELS
    if call is None or type(call.module) is not nn.Linear or not call.plain:
        return False
    own = graph.tensors.get(layer.tensors.get("weight", "")) is call.module.weight
    return own and node.rule.is_all_of(call, node) and how_many(known) * LEAST_GAIN >= len(known) > 0
