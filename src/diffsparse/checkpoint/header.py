"""What a file says about itself: versions, kind, class, plan and gates."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from diffsparse.checkpoint.container import DTYPES, HASH, read_checked
from diffsparse.compaction.plan import Plan
from diffsparse.errors import CheckpointError, SparsityError
from diffsparse.files import require_path
from diffsparse.plain import from_plain, to_plain

FORMAT_NAME = "diffsparse"
FORMAT_VERSION = 2
KINDS = ("compact", "gated", "plain")


@dataclass(frozen=True, kw_only=True)
class GateRecord:
    """What the tensors of a gate do not tell."""

    kind: str
    """Name of the gate's class."""
    rgf: float | None = None
    """`elu_alpha` of rectified gradient flow, or None."""
    dims: list[int] | None = None
    """Dimensions of one competition group; None for a gate that has no such choice."""


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """A tensor as it was saved."""

    dtype: torch.dtype
    shape: tuple[int, ...]


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
    gates: dict[str, GateRecord] = field(default_factory=dict)
    """Gates by name, so that a model without gates can get them before its numbers."""
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
            "gates": json.dumps({name: to_plain(gate) for name, gate in self.gates.items()}, separators=(",", ":")),
            "shared": json.dumps(self.shared, separators=(",", ":")),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], entries: Mapping[str, Mapping[str, Any]]) -> "Header":
        """The header that `to_metadata` gave, with the tensor entries beside it.

        Raises:
            SparsityError: a value does not fit.
            LookupError: something is missing.
        """
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


def read_header(path: str | os.PathLike[str]) -> Header:
    """What the file at `path` says about itself, after its whole content was checked against its hash.

    Args:
        path: a file that `save` wrote.

    Raises:
        CheckpointError: there is no such file, it is damaged, foreign, or has a format of another version.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> from diffsparse.checkpoint import save
        >>> path = tempfile.mkdtemp() + "/net.safetensors"
        >>> save(nn.Linear(3, 2), path)
        >>> header = read_header(path)
        >>> header.kind, header.model_class
        ('plain', 'torch.nn.modules.linear.Linear')
        >>> header.tensors["weight"]
        TensorRecord(dtype=torch.float32, shape=(2, 3))
    """
    name = require_path(path)
    metadata, entries = read_checked(name, FORMAT_NAME, FORMAT_VERSION)
    try:
        header = Header.from_metadata(metadata, entries)
        header.all_tensors()
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(f"the header of '{name}' cannot be understood: {error}") from error
    return header
