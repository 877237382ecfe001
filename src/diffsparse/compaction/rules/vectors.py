"""Vectors: parameters and buffers with one entry per channel, and what is computed from them alone."""

import numpy as np

from diffsparse.compaction.graph import Graph, Node, Shape, Value


def long_dim(shape: Shape) -> int | None:
    """The only dimension of a size other than 1; None if there is not just one."""
    dims = [dim for dim, size in enumerate(shape) if size != 1]
    return dims[0] if len(dims) == 1 and 0 not in shape else None


def is_stored(node: Node) -> bool:
    """Whether it computes with parameters and buffers alone."""
    return bool(node.inputs) and bool(node.outputs) and not node.outputs[0].depends_on_input


def track_stored(values: list[Value], graph: Graph) -> None:
    """Track those of the values that are stored vectors: each of their entries is known."""
    for value in values:
        if value.axes is None and value.parameter is not None and (axis := long_dim(value.shape)) is not None:
            tensor = graph.tensors[value.parameter]
            if tensor.is_floating_point():
                value.track(axis, np.ones(value.shape[axis], bool), tensor.detach())


def reads_vectors(node: Node) -> bool:
    """Whether all that it reads are vectors, what they were moved into, and single numbers."""
    return all(value.axes is not None or set(value.shape) <= {1} for value in node.inputs)


def track_results(node: Node) -> None:
    """Track what a stored vector was made into by an operation without a rule: its entries are known all the same."""
    if len(node.outputs) != 1 or not node.output.known or node.output.axes is not None:
        return
    axis, tensor = long_dim(node.output.shape), node.output.contents()
    if axis is not None and tensor is not None and tensor.is_floating_point():
        node.output.track(axis, np.ones(node.output.shape[axis], bool), tensor.detach())
