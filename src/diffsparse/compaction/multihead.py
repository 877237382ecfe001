"""Which heads of a `nn.MultiheadAttention` are dead, and which of its inputs are constant."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.compaction.graph import Call, Graph, Node
from diffsparse.compaction.masks import Mask, every, how_many, indices
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.layers import Linear
from diffsparse.compaction.slim_attention import CutHeads, SlimAttention
from diffsparse.compaction.tensor_slice import TensorSlice


@dataclass(frozen=True)
class Multihead:
    """One such module, called once: what stays of it."""

    call: Call
    heads: Mask
    """Heads of which something is read."""
    columns: list[Mask]
    """Inputs that are read to make queries, keys and values."""
    added: np.ndarray[Any, np.dtype[np.float64]]
    """What constant inputs that are gone add to the bias of all three."""

    @property
    def shrinks(self) -> bool:
        """Whether anything goes."""
        return not all(map(every, (self.heads, *self.columns)))

    @property
    def action(self) -> CutHeads:
        """What happens to the module."""
        columns = [None if every(mask) else indices(mask) for mask in self.columns]
        return CutHeads(heads=indices(self.heads), count=(len(self.heads), how_many(self.heads)), columns=columns)

    @property
    def _rows(self) -> Mask:
        return np.repeat(self.heads, self.call.module.head_dim)  # type: ignore[arg-type]

    @property
    def added_bias(self) -> Tensor | None:
        """What to add to `in_proj_bias` once it is cut; None for nothing."""
        # without a bias, nobody reads the rows that these inputs would add to
        added = self.call.module.in_proj_bias is not None and self.added.any()
        return torch.from_numpy(self.added[np.tile(self._rows, 3)]) if added else None

    def slices(self, graph: Graph) -> dict[str, TensorSlice]:
        """What stays of its tensors."""
        rows, thrice = self._rows, np.tile(self._rows, 3)
        cuts: dict[str, dict[int, Mask]] = {
            "in_proj_weight": {0: thrice, 1: self.columns[0]},
            "in_proj_bias": {0: thrice},
            "bias_k": {2: rows},
            "bias_v": {2: rows},
            "out_proj.weight": {1: rows},
        }
        separate = zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), self.columns, strict=True)
        cuts |= {key: {0: rows, 1: mask} for key, mask in separate}
        made = {}
        for key, dims in cuts.items():
            name, kept = (
                f"{self.call.name}.{key}",
                {dim: indices(mask) for dim, mask in dims.items() if not every(mask)},
            )
            if name in graph.tensors and kept:
                made[name] = TensorSlice(dims=kept, shape=list(graph.tensors[name].shape))
        return made


def find_multihead(graph: Graph, nodes: list[Node]) -> list[Multihead]:
    """The modules whose heads are known; call it when it is known what is read."""
    counts = graph.call_counts()
    calls = [call for call in graph.calls if type(call.module) in (nn.MultiheadAttention, SlimAttention)]
    found = [_multihead(call, nodes, graph) for call in calls if counts[call.module] == 1 and _own(call, graph)]
    return [each for each in found if each is not None and each.shrinks]


def _own(call: Call, graph: Graph) -> bool:
    """Whether nobody else uses its parameters."""
    held = {id(tensor) for tensor in call.module.parameters()}
    names = {name for name, tensor in graph.tensors.items() if id(tensor) in held}
    others = [node for i, node in enumerate(graph.nodes) if not call.first_node <= i < call.last_node]
    return all(value.parameter not in names for node in others for value in node.inputs)


def _multihead(call: Call, nodes: list[Node], graph: Graph) -> Multihead | None:
    module: Any = call.module
    layers = [node for node in nodes if node.call is call and isinstance(node.rule, Linear)]
    if len(layers) < 2 or layers[-1].layer.tensors.get("weight") != f"{call.name}.out_proj.weight".lstrip("."):
        return None
    *inner, last = layers
    need = np.concatenate([node.output.need for node in inner])
    if len(need) != 3 * module.num_heads * module.head_dim:
        return None
    heads: Mask = np.asarray(need.reshape(3, module.num_heads, module.head_dim).any((0, 2)))
    constant = [_constant(node.layer) if module.in_proj_bias is not None else False for node in inner]
    reads = [
        node.rule.reads(node.layer, node.output.need) & ~known for node, known in zip(inner, constant, strict=True)
    ]
    # one layer makes all of them, or one queries and the other one keys and values, or each its own
    reads = {1: reads * 3, 2: [reads[0], *reads[-1:] * 2], 3: reads}[len(inner)]
    if module.in_proj_weight is not None:
        # rows of one matrix
        reads = [np.logical_or.reduce(reads)] * 3
    rows = np.repeat(heads, module.head_dim)
    for node in inner:
        node.layer.rows = np.resize(rows, len(node.layer.rows))
        node.layer.columns = reads[0] if module.in_proj_weight is not None else reads[inner.index(node)]
    last.layer.columns = rows
    return Multihead(call, heads, reads, np.concatenate([_added(node.layer, graph) for node in inner]))


def _constant(layer: Layer) -> Mask:
    """Inputs that are one number."""
    return layer.input.fixed if layer.input.axis is not None else np.zeros(layer.inputs, bool)


def _added(layer: Layer, graph: Graph) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What constant inputs that are not read add to the outputs."""
    gone = _constant(layer) & ~layer.columns
    weight = layer.held("weight", graph).detach().double().cpu().numpy()
    if not gone.any():
        return np.zeros(len(weight))
    return np.asarray(weight[:, gone] @ layer.input.numbers[gone])
