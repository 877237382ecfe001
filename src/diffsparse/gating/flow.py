"""Which layers feed which: one run of the model, seen by PyTorch's dispatcher."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diffsparse.gating.operations import PRODUCTS, Parameters, Weighted, aten
from diffsparse.module_tree import memory_of
from diffsparse.nn.batchnorm import BatchStatistics, SparseBatchNorm

_BATCH_NORMS = frozenset(
    {aten.native_batch_norm, aten.cudnn_batch_norm, aten._native_batch_norm_legit_no_training, aten.batch_norm}
)
_SCALES, _SUMS = frozenset({aten.mul, aten.div}), frozenset({aten.add, aten.add_})
_MOVES = frozenset({aten.clone, aten._to_copy, aten.roll, aten.native_dropout, aten.constant_pad_nd})


@dataclass(frozen=True)
class Producer:
    """A layer that makes channels: the name of its weights, and where in them it begins."""

    name: str
    offset: int
    table: bool = False
    """Whether it is a table of embeddings."""


@dataclass(frozen=True)
class Trace:
    """What is known of a tensor: where it comes from, without going through another layer."""

    producers: frozenset[Producer] = frozenset()
    norms: frozenset[str] = frozenset()
    """Batch norms on the way."""
    attended: bool = False
    """Whether products of two such tensors are on the way, as in attention."""
    branch: frozenset[Producer] = frozenset()
    """Producers of which it is the output, or a sum of outputs, at most scaled and moved."""
    made: int = 0
    """The operation that made it, as one bit."""
    past: int = 0
    """All operations that it depends on, through layers too."""


@dataclass
class Reader:
    """A layer and what it reads, over all its calls."""

    channels: int
    input_dim: int | None
    producers: set[Producer] = field(default_factory=set)
    norms: set[str] = field(default_factory=set)
    attended: bool = False
    turned: bool = False
    """Whether it is also applied the other way round, as in the second half of a tied autoencoder."""
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Mean squares of its inputs on the example."""


class Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records who reads whom.

    Tensors are known by their memory, so that views and writes in place need no care.
    """

    def __init__(self, model: nn.Module, inputs: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = Parameters(model)
        self.readers: dict[str, Reader] = {}
        self.widths: dict[Producer, int] = {}
        self.branches: dict[Producer, float] = {}
        """Last layers of residual branches, and how large what they add is, relative to what it is added to."""
        self._norm_at = _norms_by_memory(model)
        self._count = 0
        self._past_of: dict[Producer, int] = {}
        self._traces: dict[int | None, Trace] = {}
        for tensor in inputs:
            self._traces[memory_of(tensor)] = Trace(made=(bit := self._new_bit()), past=bit)

    def trace(self, tensor: Tensor) -> Trace:
        return self._traces.get(memory_of(tensor), Trace())

    def _new_bit(self) -> int:
        self._count += 1
        return 1 << self._count

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        layer = self.parameters.weighted(func, args)
        if layer is not None:
            self._read(layer)
        if func.overloadpacket in _SUMS:
            self._find_branches(given)
        result = func(*args, **kwargs)
        known = {memory_of(tensor) for tensor in given}
        trace = self._trace_of(func, layer, given)
        for made in (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)):
            place = memory_of(made)
            if layer is not None or func is aten.embedding.default:
                trace = self._produced(layer, given, made, trace)
            view = place in known and not func._schema.is_mutable
            if place and not view:
                self._traces[place] = trace
        return result

    def _read(self, layer: Weighted) -> None:
        channels, seen = layer.operand.shape[layer.axis], self.trace(layer.operand)
        reader = self.readers.setdefault(layer.name, Reader(channels, layer.input_dim))
        if reader.input_dim != layer.input_dim:
            reader.turned = reader.turned or None not in (reader.input_dim, layer.input_dim)
            reader.input_dim = None
        reader.producers |= seen.producers
        reader.norms |= seen.norms
        reader.attended |= seen.attended
        dims = [dim for dim in range(layer.operand.dim()) if dim != layer.axis]
        if channels == reader.channels:
            reader.squares = reader.squares + layer.operand.double().square().mean(dims)

    def _produced(self, layer: Weighted | None, given: list[Tensor], made: Tensor, trace: Trace) -> Trace:
        """The trace of what a layer or a table makes: everything before it is forgotten but the past."""
        found = None if layer is not None else self.parameters.find(given[0])
        if layer is not None:
            producer, axis = Producer(layer.name, layer.offset), layer.axis
        elif found is not None:
            producer, axis = Producer(found[0], 0, table=True), -1
        else:
            return trace
        self.widths[producer] = made.shape[axis]
        self._past_of[producer] = self._past_of.get(producer, 0) | trace.past
        return Trace(producers=frozenset({producer}), branch=frozenset({producer}), made=trace.made, past=trace.past)

    def _trace_of(self, func: Any, layer: Weighted | None, given: list[Tensor]) -> Trace:
        """The trace of what an operation makes from these tensors."""
        bit, traces = self._new_bit(), [self.trace(tensor) for tensor in given]
        past = bit
        for trace in traces:
            past |= trace.past
        kind, sources = func.overloadpacket, [trace for trace in traces if trace.producers]
        norms = frozenset().union(*(trace.norms for trace in traces))
        if kind in _BATCH_NORMS:
            norms |= frozenset(name for tensor in given if (name := self._norm_at.get(memory_of(tensor))) is not None)
        return Trace(
            producers=frozenset().union(*(trace.producers for trace in traces)),
            norms=norms,
            attended=any(trace.attended for trace in traces) or (kind in PRODUCTS and len(sources) > 1),
            branch=self._branch(kind, given, traces),
            made=bit,
            past=past,
        )

    def _branch(self, kind: Any, given: list[Tensor], traces: list[Trace]) -> frozenset[Producer]:
        moving = [trace for trace, t in zip(traces, given, strict=True) if self.parameters.find(t) is None]
        if kind in _MOVES or (kind in _SCALES and len(moving) == 1):
            return moving[0].branch if moving else frozenset()
        if kind in _SUMS and len(moving) == 2 and moving[0].branch and moving[1].branch:
            return moving[0].branch | moving[1].branch
        return frozenset()

    def _find_branches(self, given: list[Tensor]) -> None:
        """Note producers whose output is added to something that they depend on."""
        if len(given) != 2:
            return
        for added, stream in (given, given[::-1]):
            for producer in self.trace(added).branch:
                if self._past_of.get(producer, 0) & self.trace(stream).made:
                    size = added.double().norm() / stream.double().norm().clamp_min(1e-30)
                    self.branches[producer] = max(float(size), self.branches.get(producer, 0.0))


def _norms_by_memory(model: nn.Module) -> dict[int | None, str]:
    """Names of batch norms by where the tensors lie that they hand over."""
    found: dict[int | None, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm | SparseBatchNorm) and not isinstance(module, BatchStatistics):
            for key in ("weight", "running_mean"):
                if (tensor := getattr(module, key, None)) is not None:
                    found[memory_of(tensor)] = name
    return found
