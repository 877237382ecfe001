"""Matrix products with a stored matrix: linear layers whose weight has inputs in dimension 0."""

from typing import Any, ClassVar

from torch import nn

from diffsparse.compaction.graph import Node, Value
from diffsparse.compaction.rules.base import Rule, argument
from diffsparse.compaction.rules.contraction import AddedProduct, Contraction
from diffsparse.compaction.rules.layers import Linear


class MatrixLayer(Linear):
    """`x @ weight`."""

    otherwise: ClassVar[Rule | None] = Contraction()
    modules: ClassVar[tuple[type[nn.Module] | str, ...]] = ()
    transposed = True

    def operand_and_tensors(self, node: Node) -> tuple[Value, dict[str, Any]]:
        return node.inputs[0], {"weight": _matrix(node.inputs[-1])}


class AddedMatrixLayer(MatrixLayer):
    """`addmm(bias, x, weight)`, as GPT-2 has it."""

    otherwise = AddedProduct()
    modules = ("transformers.pytorch_utils.Conv1D",)

    def operand_and_tensors(self, node: Node) -> tuple[Value, dict[str, Any]]:
        bias, source, weight = (argument(node, at, name) for at, name in enumerate(("input", "mat1", "mat2")))
        plain = isinstance(bias, Value) and len(bias.shape) == 1 and not {"alpha", "beta"} & {*node.kwargs}
        return source, {"weight": _matrix(weight) if plain else None, "bias": bias if plain else None}

    def true_attributes(self, module: Any) -> dict[str, int]:
        inputs, outputs = module.weight.shape
        return {"nx": inputs, "nf": outputs}


def _matrix(value: Any) -> Value | None:
    return value if isinstance(value, Value) and value.parameter is not None and len(value.shape) == 2 else None


OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(["matmul", "mm"], MatrixLayer()),
    "addmm": AddedMatrixLayer(),
}
