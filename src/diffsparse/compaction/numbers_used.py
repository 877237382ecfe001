"""Python numbers that a model computes with: its compact form must use the same ones.

Code may compute them from the width of a tensor, as in `x / math.sqrt(x.shape[1])`. A norm behind that can hide the
difference from whoever compares outputs.
"""

import math
from collections import Counter
from typing import Any, TypeAlias

from torch import Tensor
from torch.overrides import TorchFunctionMode

from diffsparse.compaction.graph import Graph
from diffsparse.compaction.rules.base import numbers_in, takes_number
from diffsparse.compaction.spelling import spelling
from diffsparse.errors import SparsityError

Numbers: TypeAlias = Counter[tuple[Any, ...]]
"""How often an operation was given some numbers: the name of the operation, then the numbers."""


def numbers_of(graph: Graph) -> Numbers:
    """The numbers that were used in a recorded run, in operations on floating-point tensors."""
    return Counter(
        (node.op, *numbers_in(node.args, node.kwargs))
        for node in graph.nodes
        if takes_number(node.op, node.args, node.kwargs) and node.outputs and not node.output.discrete
    )


class OtherNumbersError(SparsityError):
    """A compact model computes with numbers that the original does not use."""


class NumbersUsed(TorchFunctionMode):
    """Counts the numbers while a model runs within it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Numbers = Counter()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result, op = func(*args, **kwargs), spelling(func)[0]
        if takes_number(op, args, kwargs) and isinstance(result, Tensor) and result.is_floating_point():
            self.counts[op, *numbers_in(args, kwargs)] += 1
        return result

    def require_among(self, known: Numbers, tolerance: float) -> None:
        """Raise if a number was used that the original did not use, or not as often.

        Numbers may differ by rounding, up to `tolerance`, because code may compute them from data.
        """
        left = list((known - self.counts).elements())
        for used in (self.counts - known).elements():
            same = next((other for other in left if _close(used, other, tolerance)), None)
            if same is None:
                op, *numbers = used
                raise OtherNumbersError(
                    f"the code of the model computes with the widths of its tensors: {op} is given "
                    f"{', '.join(f'{number:.6g}' for number in numbers)}, which the original is not"
                )
            left.remove(same)


def _close(one: tuple[Any, ...], other: tuple[Any, ...], tolerance: float) -> bool:
    if len(one) != len(other) or one[0] != other[0]:
        return False
    pairs = zip(one[1:], other[1:], strict=True)
    return all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in pairs)
