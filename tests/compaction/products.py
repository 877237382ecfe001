"""Calls that multiply and add, as the oracle sees them: their factors, and which of their terms matter."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Marks: TypeAlias = tuple[Tensor, Tensor]
"""Of one tensor: which entries differ between inputs, and which the outputs of the network depend on."""


class Product(Protocol):
    """The terms of one call."""

    @property
    def whole(self) -> int:
        """All of them."""
        ...

    def live(self, *marks: Marks) -> int:
        """Those that matter, given the marks of the factors and of the result."""
        ...

    def least(self, calls: list[list[Marks]]) -> int:
        """As few as any call of the same form and the same weights can do with, given the marks of all of them.

        A product of torch's takes blocks of one size, and a layer has one weight for all of its calls.
        """
        ...


def _along(marks: Marks, dim: int) -> Tensor:
    """The indices along `dim` that both vary and are reached."""
    return torch.stack([mark.movedim(dim, 0).flatten(1).any(1) for mark in marks]).all(0)


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer: each output channel of a group reads each input channel of it."""

    inputs: int
    """The dimension of the channels that are read; `outputs`: of those that are made."""
    outputs: int
    groups: int
    each: int
    """Terms per pair of channels."""
    whole: int

    def live(self, *marks: Marks) -> int:
        return self.least([list(marks)])

    def least(self, calls: list[list[Marks]]) -> int:
        ins = self._any([_along(given, self.inputs) for given, _ in calls])
        outs = self._any([_along(made, self.outputs) for _, made in calls])
        return int((ins * outs).sum()) * self.each

    def _any(self, masks: list[Tensor]) -> Tensor:
        """How many channels of each group are there in any of the calls."""
        return torch.stack(masks).any(0).view(self.groups, -1).sum(1)


@dataclass(frozen=True)
class Contraction:
    """A product of two tensors, written as in `einsum`: a letter for each dimension."""

    first: str
    second: str
    result: str
    sizes: dict[str, int]

    @property
    def whole(self) -> int:
        return math.prod(self.sizes.values())

    def live(self, *marks: Marks) -> int:
        terms, rows, columns = self._sizes(*marks)
        return int((terms * rows * columns).sum())

    def least(self, calls: list[list[Marks]]) -> int:
        terms, rows, columns = self._sizes(*calls[0])
        blocks = int((terms * rows * columns > 0).sum())
        return blocks * int(terms.max()) * int(rows.max()) * int(columns.max()) if blocks else 0

    def _sizes(self, *marks: Marks) -> tuple[Tensor, Tensor, Tensor]:
        """Of each block: live terms, rows and columns."""
        batch = [x for x in self.first if x in self.second and x in self.result]
        summed = [x for x in self.first if x in self.second and x not in self.result]
        own, other = ([x for x in y if x not in batch + summed] for y in (self.first, self.second))
        a = [self._three(mark, self.first, batch, own, summed) for mark in marks[0]]
        b = [self._three(mark, self.second, batch, summed, other) for mark in marks[1]]
        out = [self._three(mark, self.result, batch, own, other) for mark in marks[2]]
        terms = (a[0].any(1) | b[0].any(2)) & a[1].any(1) & b[1].any(2)
        rows, columns = out[0].any(2) & out[1].any(2), out[0].any(1) & out[1].any(1)
        # the positions that a weight is applied to all count
        if not b[0].any():
            rows = rows.any(1, keepdim=True).expand_as(rows)
        if not a[0].any():
            columns = columns.any(1, keepdim=True).expand_as(columns)
        return terms.sum(1), rows.sum(1), columns.sum(1)

    def _three(self, mark: Tensor, letters: str, *groups: list[str]) -> Tensor:
        # a dimension of size one beside a larger one stands for all of them
        mark = mark.expand([self.sizes[x] for x in letters])
        order = [letters.index(x) for group in groups for x in group]
        return mark.permute(order).reshape([math.prod(self.sizes[x] for x in group) for group in groups])


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer: its inputs may be dead, its states are taken to be live."""

    each: int
    """Terms per input."""
    states: int
    """Terms of the states and of the layers above the first."""
    inputs: int

    @property
    def whole(self) -> int:
        return self.each * self.inputs + self.states

    def live(self, *marks: Marks) -> int:
        given, made = marks
        return int(_along(given, -1).sum()) * self.each + self.states if made[1].any() else 0

    def least(self, calls: list[list[Marks]]) -> int:
        return self.live(*calls[0])


def find(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], Callable[..., Product]]:
    """The factors of a call, and what makes a product of them and the result."""
    return _CALLS[name](args, kwargs)


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any], transposed: bool = False) -> Any:
    x, weight = args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs["weight"]
    groups = args[6] if len(args) > 6 else kwargs.get("groups", 1)
    dim = 1 - weight.dim()

    def make(x: Tensor, result: Tensor) -> Product:
        over = x if transposed else result
        pixels = over.numel() // over.shape[dim]
        return Layer(dim, dim, groups, math.prod(weight.shape[2:]) * pixels, weight.numel() * pixels)

    return [x], make


def _transposed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _convolution(args, kwargs, transposed=True)


def _linear(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight = args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs["weight"]
    rows = x.numel() // x.shape[-1]
    return [x], lambda x, result: Layer(-1, -1, 1, rows, weight.numel() * rows)


def _matmul(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _matrices(args[0], args[1] if len(args) > 1 else kwargs["other"])


def _added(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _matrices(*(list(args) + list(kwargs.values()))[1:3])


def _reversed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _matrices(args[1], args[0])


def _matrices(a: Tensor, b: Tensor) -> Any:
    """Both with letters: those of batches from the right, none where one has size one and the other has not."""
    ends = ("k" if a.dim() == 1 else "mk", "k" if b.dim() == 1 else "kn")
    result = ("m" if a.dim() > 1 else "") + ("n" if b.dim() > 1 else "")
    count = max(a.dim() - len(ends[0]), b.dim() - len(ends[1]), 0)
    names = "ABCDEFGH"[:count]
    sizes = dict(zip(ends[0], a.shape[-len(ends[0]) :], strict=True))
    sizes |= dict(zip(ends[1], b.shape[-len(ends[1]) :], strict=True))
    letters = []
    for tensor, end in zip((a, b), ends, strict=True):
        own = tensor.shape[: tensor.dim() - len(end)]
        letters.append(names[count - len(own) :] + end)
        for name, size in zip(names[count - len(own) :], own, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    return [a, b], lambda a, b, out: Contraction(letters[0], letters[1], names + result, sizes)


def _einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    text, factors = args[0].replace(" ", ""), list(args[1]) if isinstance(args[1], list | tuple) else list(args[1:])
    given, result = text.split("->")
    first, second = given.split(",")
    dots = "ABCDEFGH"[: factors[0].dim() - len(first.replace("...", ""))]
    first, second, result = (part.replace("...", dots) for part in (first, second, result))
    sizes = dict(zip(first, factors[0].shape, strict=True)) | dict(zip(second, factors[1].shape, strict=True))
    return factors, lambda a, b, out: Contraction(first, second, result, sizes)


def _recurrent(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, packed = args[0], isinstance(args[1], Tensor) and args[1].dtype == torch.int64
    matrices = [weight for weight in args[3 if packed else 2] if weight.dim() == 2]
    steps = x.numel() // x.shape[-1]
    directions = 2 if args[-1 if packed else -2] is True else 1
    entering = [matrices[2 * i] for i in range(directions)]
    each = steps * sum(weight.shape[0] for weight in entering)
    whole = steps * sum(weight.numel() for weight in matrices)
    return [x], lambda x, result: Recurrence(each, whole - each * x.shape[-1], x.shape[-1])


_CALLS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _convolution),
    **dict.fromkeys(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"], _transposed),
    **dict.fromkeys(["matmul", "mm", "bmm", "mv", "dot", "__matmul__"], _matmul),
    **dict.fromkeys(["addmm", "baddbmm", "addmv"], _added),
    **dict.fromkeys(["lstm", "gru", "rnn_tanh", "rnn_relu"], _recurrent),
    "__rmatmul__": _reversed,
    "linear": _linear,
    "einsum": _einsum,
}
NAMES = frozenset(_CALLS)
"""The calls that are products."""
