"""`save`: a model, gated, compact or plain, becomes one file with a header that describes it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.checkpoint.container import DTYPE_NAMES, DTYPES, HASH, write_tensors
from diffsparse.checkpoint.parts import PartRecord, recorded_parts
from diffsparse.compaction.apply import plan_of
from diffsparse.compaction.pipeline import Compacted
from diffsparse.compaction.plan import Plan
from diffsparse.errors import CheckpointError, SparsityError
from diffsparse.files import replacing
from diffsparse.gates import Gate, named_gates
from diffsparse.module_tree import lazy_tensor, without_wrappers
from diffsparse.plain import from_plain, to_plain
from diffsparse.version import __version__

FORMAT_NAME = "diffsparse"
FORMAT_VERSION = 2
KINDS = ("compact", "gated", "plain")


@dataclass(frozen=True, kw_only=True)
class GateRecord:
    """What the tensors of a gate do not tell: the name of its class, its `rgf` and its `dims`."""

    kind: str
    rgf: float | None = None
    dims: list[int] | None = None

    @classmethod
    def of(cls, gate: Gate) -> "GateRecord":
        return cls(kind=type(gate).__name__, rgf=gate.rgf, dims=None if gate.dims is None else list(gate.dims))


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """A tensor as it was saved."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Header:
    """Everything about a saved model except its numbers."""

    kind: str
    """`compact`, `gated` or `plain`."""
    model_class: str
    """Module and qualified name of the model's class."""
    diffsparse_version: str
    torch_version: str
    plan: Plan | None = None
    """For a compact model: how it follows from the user's class."""
    gates: dict[str, GateRecord] = field(default_factory=dict)
    """Gates by name, so that a model without gates can get them before its numbers."""
    parts: dict[str, PartRecord] = field(default_factory=dict)
    """Gates of layers by name, likewise."""
    shared: dict[str, str] = field(default_factory=dict)
    """Further names of tensors that were saved once."""
    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    """Tensors by name, without those further names."""
    sha256: str = ""
    """Hash of the content; empty before it is written."""
    format_version: int = FORMAT_VERSION

    @classmethod
    def of(cls, model: nn.Module, plan: Plan | None, shared: dict[str, str]) -> "Header":
        """The header of a file for `model`, without tensors."""
        gates = {name: GateRecord.of(gate) for name, gate in named_gates(model)}
        return cls(
            kind="compact" if plan is not None else "gated" if gates else "plain",
            model_class=f"{type(model).__module__}.{type(model).__qualname__}",
            diffsparse_version=__version__,
            torch_version=str(torch.__version__),
            plan=plan,
            gates=gates,
            parts=recorded_parts(model),
            shared=shared,
        )

    def to_metadata(self) -> dict[str, str]:
        """The header as safetensors metadata, without tensors and hash, which the file adds."""
        parts = {name: to_plain(part) for name, part in self.parts.items()}
        return {
            "format": FORMAT_NAME,
            "format_version": str(self.format_version),
            "diffsparse_version": self.diffsparse_version,
            "torch_version": self.torch_version,
            "kind": self.kind,
            "model_class": self.model_class,
            "plan": "" if self.plan is None else self.plan.to_json(),
            "gates": json.dumps({name: to_plain(gate) for name, gate in self.gates.items()}, separators=(",", ":")),
            "shared": json.dumps(self.shared, separators=(",", ":")),
            **({"parts": json.dumps(parts, separators=(",", ":"))} if parts else {}),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], entries: Mapping[str, Mapping[str, Any]]) -> "Header":
        """The header that `to_metadata` gave; raises LookupError or SparsityError if something is missing or wrong."""
        kind, plan = metadata["kind"], metadata["plan"]
        if kind not in KINDS or (kind == "compact") != bool(plan):
            raise SparsityError(f"kind is {kind!r:.50}, and it {'has' if plan else 'has no'} plan")
        return cls(
            kind=kind,
            model_class=metadata["model_class"],
            diffsparse_version=metadata["diffsparse_version"],
            torch_version=metadata["torch_version"],
            plan=Plan.from_json(plan) if plan else None,
            gates=from_plain(dict[str, GateRecord], json.loads(metadata["gates"]), "gates"),
            parts=from_plain(dict[str, PartRecord], json.loads(metadata.get("parts", "{}")), "parts"),
            shared=from_plain(dict[str, str], json.loads(metadata["shared"]), "shared"),
            tensors={
                name: TensorRecord(dtype=DTYPES[entry["dtype"]], shape=tuple(entry["shape"]))
                for name, entry in entries.items()
            },
            sha256=metadata[HASH],
            format_version=int(metadata["format_version"]),
        )

    def all_tensors(self) -> dict[str, TensorRecord]:
        """Tensors by all their names."""
        return self.tensors | {alias: self.tensors[name] for alias, name in self.shared.items()}

    def __str__(self) -> str:
        numbers = sum(prod(tensor.shape) for tensor in self.tensors.values())
        lines = [
            f"{self.kind} model of class {self.model_class}",
            f"{numbers} numbers in {len(self.tensors)} tensors, {len(self.gates)} gates",
            f"format {self.format_version}, diffsparse {self.diffsparse_version}, torch {self.torch_version}",
            f"sha256 {self.sha256}",
        ]
        return "\n".join([*lines, *([] if self.plan is None else ["plan:", str(self.plan)])])


def save(thing: Compacted[Any] | nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model to one safetensors file, in one step: a failure leaves the old file as it was.

    Args:
        thing: what `compact` returned or its `.model`, which remembers its plan; a gated model; or any other model.
        path: where; the folder must exist.

    The file holds all of `state_dict()`, tensors with several names once. Its header holds versions, the class, the
    plan, the kinds of gates and a hash of everything. Wrappers of DDP and `torch.compile` are taken off.

    Raises:
        CheckpointError: the file cannot be written, or something in the state cannot be saved without pickle.

    Example:
        >>> import tempfile, torch, diffsparse as ds
        >>> path, x = tempfile.mkdtemp() + "/net.safetensors", torch.randn(5, 3)
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        >>> ds.save(model, path)
        >>> again = ds.load(path, nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        >>> torch.equal(again(x), model(x))
        True
    """
    model = unwrapped(thing.model if isinstance(thing, Compacted) else thing)
    if lazy := lazy_tensor(model):
        raise CheckpointError(f"'{lazy}' cannot be saved: it is lazy and has no size yet; run the model once first")
    state = model.state_dict()
    for name, value in state.items():
        _check_tensor(name, value)
    shared = shared_names(state)
    once = {name: tensor for name, tensor in state.items() if name not in shared}
    header = Header.of(model, thing.plan if isinstance(thing, Compacted) else plan_of(model), shared)
    with replacing(path) as file:
        write_tensors(file, once, header.to_metadata())


def unwrapped(model: object) -> nn.Module:
    """The user's own model, without the wrappers of data parallel training and `torch.compile`."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise CheckpointError(f"expected a model, an instance of nn.Module, got {what}")
    return without_wrappers(model)


def shared_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that came under another name before, with that name."""
    first: dict[tuple[object, ...], str] = {}
    shared: dict[str, str] = {}
    for name, tensor in state.items():
        if tensor.numel() == 0:
            continue
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if first.setdefault(place, name) != name:
            shared[name] = first[place]
    return shared


def _check_tensor(name: str, value: object) -> None:
    problem = ""
    if not isinstance(value, Tensor):
        problem = f"it is no tensor but a {type(value).__name__}, which only pickle could keep"
    elif value.is_meta:
        problem = "it is on the meta device and has no numbers"
    elif value.layout != torch.strided or value.is_quantized:
        problem = f"its layout is {value.layout if not value.is_quantized else 'quantized'}, only dense tensors can be"
    elif value.dtype not in DTYPE_NAMES:
        problem = f"safetensors has no place for {value.dtype}"
    if problem:
        raise CheckpointError(f"'{name}' cannot be saved: {problem}")
