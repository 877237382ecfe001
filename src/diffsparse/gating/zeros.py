"""How sparse a gated model is now."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.gates import Gate, chosen_gates
from diffsparse.nn import GatePart
from diffsparse.penalties import GroupL21
from diffsparse.selection import Selection


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many of how many are zero."""

    zero: int
    total: int

    @property
    def fraction(self) -> float:
        """Share of zeros, 0 when there is nothing to count."""
        return self.zero / self.total if self.total else 0.0

    def __add__(self, other: "Count") -> "Count":
        return Count(zero=self.zero + other.zero, total=self.total + other.total)

    def __str__(self) -> str:
        return f"{self.zero}/{self.total} ({self.fraction:.1%})"


@dataclass(frozen=True, kw_only=True)
class GateSparsity:
    """Zeros of one gate."""

    name: str
    """Name of the gate's layer, or of the gate itself if it stands alone."""
    channels: Count
    groups: Count | None
    """Groups whose entries are all zero; None when no grouping was asked for."""

    @property
    def dead(self) -> bool:
        return self.channels.zero == self.channels.total


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """Channel, layer and group sparsity of a model; prints as a table."""

    gates: tuple[GateSparsity, ...]

    @property
    def channels(self) -> Count:
        """Zero entries over all gates."""
        return sum((row.channels for row in self.gates), Count(zero=0, total=0))

    @property
    def layers(self) -> Count:
        """Gates with no entry left."""
        return Count(zero=sum(row.dead for row in self.gates), total=len(self.gates))

    @property
    def groups(self) -> Count | None:
        """Groups with no entry left, over all gates; None when no grouping was asked for."""
        counts = [row.groups for row in self.gates if row.groups is not None]
        return sum(counts, Count(zero=0, total=0)) if counts else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        totals = {"channels": self.channels, "layers": self.layers, "groups": self.groups}
        plain = {key: None if c is None else asdict(c) | {"fraction": c.fraction} for key, c in totals.items()}
        return {"gates": [asdict(row) | {"dead": row.dead} for row in self.gates], **plain}

    def __str__(self) -> str:
        width, lines = max(len(row.name) for row in self.gates), []
        for row in self.gates:
            groups = "" if row.groups is None else f"  groups {row.groups}"
            lines.append(f"{row.name:<{width}}  zero {row.channels}{groups}{'  dead' if row.dead else ''}")
        groups = "" if self.groups is None else f", groups {self.groups}"
        return "\n".join([*lines, f"total: channels {self.channels}, layers {self.layers}{groups}"])


@torch.no_grad()
def sparsity(model: nn.Module, groups: GroupL21 | None = None, only: Selection | None = None) -> Sparsity:
    """Count exact zeros of every gate of `model`: channel, layer and (if `groups` is given) group sparsity.

    Args:
        model: a gated model.
        groups: the grouping to count by, the same object that a penalty takes, for example `GroupL21(size=12)`.
        only: the gates to count, chosen as for a `Penalty`; by default all.

    Example:
        >>> import diffsparse as ds
        >>> print(sparsity(ds.SignedGate.from_values([0.5, 0.0, 0.0, 0.0]), ds.GroupL21(size=2)))
        gate  zero 3/4 (75.0%)  groups 1/2 (50.0%)
        total: channels 3/4 (75.0%), layers 0/1 (0.0%), groups 1/2 (50.0%)
    """
    if groups is not None and not isinstance(groups, GroupL21):
        raise SparsityError(f"groups must be None or a GroupL21, such as GroupL21(size=12), got {groups!r}")
    gates, parts = chosen_gates(model, only), _parts(model)
    rows = [
        row
        for name, gate in gates.items()
        for row in (_count_parts(gate, parts[gate]) if gate in parts and not groups else [_count(name, gate, groups)])
    ]
    return Sparsity(gates=tuple(rows))


@torch.no_grad()
def gate_values(model: nn.Module, only: Selection | None = None) -> dict[str, Tensor]:
    """The values of every gate by the name of its layer, as in `sparsity`; a gate that layers share comes in parts.

    Example:
        >>> import diffsparse as ds
        >>> {name: a.tolist() for name, a in gate_values(ds.SignedGate.from_values([0.5, 0.0])).items()}
        {'gate': [0.5, 0.0]}
    """
    parts, found = _parts(model), dict[str, Tensor]()
    for name, gate in chosen_gates(model, only).items():
        values, shared = gate(), parts.get(gate, {})
        found |= {part_name: values[part.start : part.stop] for part_name, part in shared.items()}
        if not shared:
            found[_layer_name(name)] = values
    return found


def _layer_name(gate: str) -> str:
    return gate.removesuffix(".gate") or "gate"


def _parts(model: nn.Module) -> dict[Gate, dict[str, GatePart]]:
    """The parts of gates that layers share, by the name of the layer."""
    parts: dict[Gate, dict[str, GatePart]] = {}
    for name, module in model.named_modules():
        if isinstance(module, GatePart):
            parts.setdefault(module.gate, {})[f"{name.rpartition('.')[0]} ({module.kind})"] = module
    return parts


def _count_parts(gate: Gate, parts: dict[str, GatePart]) -> list[GateSparsity]:
    """One row for each layer that uses entries of the gate."""
    zero = gate() == 0
    rows = []
    for name, part in parts.items():
        gate.check_finite(name)
        channels = Count(zero=int(zero[part.start : part.stop].sum()), total=part.stop - part.start)
        rows.append(GateSparsity(name=name, channels=channels, groups=None))
    return rows


def _count(name: str, gate: Gate, groups: GroupL21 | None) -> GateSparsity:
    gate.check_finite(name)
    values = gate()
    grouped = None
    if groups is not None:
        rows = gate.groups(values)[0]
        groups.check_size(rows.shape[-1], name or type(gate).__name__)
        alive = groups.split(rows).ne(0).any(-1)
        grouped = Count(zero=int((~alive).sum()), total=alive.numel())
    channels = Count(zero=int((values == 0).sum()), total=values.numel())
    return GateSparsity(name=_layer_name(name), channels=channels, groups=grouped)
