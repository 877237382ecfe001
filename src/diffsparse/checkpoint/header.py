"""What a file says about itself: versions, kind, class, plan and gates."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

import torch

from diffsparse.checkpoint.container import DTYPES, HASH
from diffsparse.compaction.plan import Plan
from diffsparse.errors import SparsityError
from diffsparse.plain import from_plain, to_plain

Thing = TypeVar("Thing")

FORMAT_NAME = "diffsparse"
FORMAT_VERSION = 2
KINDS = ("compact", "gated", "plain")


@dataclass(frozen=True, kw_only=True)
class SparseLayer:
    """A sparse batch norm of the saved model."""

    kind: str
    """Name of its class."""
    rgf: float | None = None
    """Rectified gradient flow of its gate."""


@dataclass(frozen=True, kw_only=True)
class GateRecord:
    """What the tensors of a gate do not tell."""

    kind: str
    """Name of its class."""
    rgf: float | None = None
    """`elu_alpha` of rectified gradient flow, or None."""
    dims: list[int] | None = None
    """Dimensions of one competition group; None for a gate that has no such choice."""


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """A tensor of the file."""

    dtype: torch.dtype
    """As saved."""
    shape: tuple[int, ...]
    """As saved."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """Everything about a saved model but its numbers."""

    kind: str
    """`compact`, `gated` or `plain`."""
    model_class: str
    """Module and qualified name of the model's class."""
    diffsparse_version: str
    """What wrote the file."""
    torch_version: str
    """What it ran on."""
    plan: Plan | None = None
    """For a compact model: how it follows from the user's class."""
    sparse_layers: dict[str, SparseLayer] = field(default_factory=dict)
    """Sparse batch norms by name, so that a model without gates can get them before its numbers."""
    gates: dict[str, GateRecord] = field(default_factory=dict)
    """Gates by name."""
    shared: dict[str, str] = field(default_factory=dict)
    """Further names of tensors that were saved once."""
    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    """Tensors by name, without those further names."""
    sha256: str = ""
    """Hash of the content; empty before it is written."""
    format_version: int = FORMAT_VERSION
    """Version of this format."""

    def to_metadata(self) -> dict[str, str]:
        """The header as safetensors metadata, without tensors and hash, which the file adds."""
        return {
            "format": FORMAT_NAME,
            "format_version": str(self.format_version),
            "diffsparse_version": self.diffsparse_version,
            "torch_version": self.torch_version,
            "kind": self.kind,
            "model_class": self.model_class,
            "plan": "" if self.plan is None else self.plan.to_json(),
            "sparse_layers": _to_json({name: to_plain(layer) for name, layer in self.sparse_layers.items()}),
            "gates": _to_json({name: to_plain(gate) for name, gate in self.gates.items()}),
            "shared": _to_json(self.shared),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], entries: Mapping[str, Mapping[str, Any]]) -> "Header":
        """The header that `to_metadata` gave, with the tensor entries beside it.

        Raises:
            SparsityError: a value does not fit.
            LookupError: something is missing.
        """
        if metadata["kind"] not in KINDS or (metadata["kind"] == "compact") != bool(metadata["plan"]):
            raise SparsityError(
                f"kind is {metadata['kind']!r:.50}, and it {'has' if metadata['plan'] else 'has no'} plan"
            )
        return cls(
            kind=metadata["kind"],
            model_class=metadata["model_class"],
            diffsparse_version=metadata["diffsparse_version"],
            torch_version=metadata["torch_version"],
            plan=Plan.from_json(metadata["plan"]) if metadata["plan"] else None,
            sparse_layers=_from_json(dict[str, SparseLayer], metadata, "sparse_layers"),
            gates=_from_json(dict[str, GateRecord], metadata, "gates"),
            shared=_from_json(dict[str, str], metadata, "shared"),
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


def _to_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))


def _from_json(kind: type[Thing], metadata: Mapping[str, str], key: str) -> Thing:
    return from_plain(kind, json.loads(metadata[key]), key)
