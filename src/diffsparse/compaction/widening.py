"""Dead channels that stay although they could go: whole widths and fewer adaptors are often faster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffsparse.compaction.graph import Value
from diffsparse.compaction.masks import Mask, how_many, some, without
from diffsparse.compaction.rules.base import widen
from diffsparse.compaction.rules.groups import filled
from diffsparse.compaction.rules.layer import Layer

WHOLE = 2**31
"""Rounding to this keeps all channels."""


@dataclass(frozen=True, kw_only=True)
class Widening:
    """Which channels stay beyond those that matter.

    Every channel that a tensor holds can be read and computed, so that any choice is exact.
    """

    round_to: int = 1
    """Widths become multiples of this, where layers are that wide."""
    selects: bool = True
    """Whether a layer may read fewer channels than the tensor in front of it holds."""
    expands: bool = True
    """Whether a layer may compute fewer channels than the tensor behind it holds."""
    widths: Mapping[int, "Widening"] = field(default_factory=dict)
    """Other choices for tensors that had so many channels."""

    def at(self, channels: int) -> "Widening":
        """The choice for tensors that had so many channels."""
        return self.widths.get(channels, self)

    @property
    def changes_nothing(self) -> bool:
        return self.round_to == 1 and self.selects and self.expands and not self.widths

    def __str__(self) -> str:
        parts = [] if self.round_to == 1 else [f"round_to={self.round_to}"]
        if self.round_to >= WHOLE:
            parts = ["all channels"]
        parts += [] if self.selects else ["no select"]
        parts += [] if self.expands else ["no expand"]
        own = ", ".join(parts) or "lossless"
        return "; ".join([own, *(f"{width} channels: {choice}" for width, choice in sorted(self.widths.items()))])


def widen_tensors(widening: Widening, values: list[Value], layers: list[Layer]) -> bool:
    """Keep more channels of tensors, so that there is less to select and expand; whether anything changed."""
    changed = False
    for value in values:
        multiple = widening.at(value.channels).round_to
        changed |= multiple > 1 and widen(value, rounded(value.keep, multiple))
    for layer in layers:
        own = widening.at(layer.output.channels)
        # a layer that does not mix channels takes from one end what it gives to the other
        if layer.free and not layer.mixes and layer.given is None and layer.input.axis is not None:
            changed |= not own.selects and widen(layer.output, layer.input.keep)
            changed |= not own.expands and widen(layer.input, without(layer.output.keep, layer.mapped_rows))
    return changed


def widen_layers(widening: Widening, layers: list[Layer]) -> None:
    """Let layers read and compute more of the channels that are there."""
    for layer in layers:
        if not layer.free or layer.groups > 1 or not some(layer.rows) or not len(layer.columns):
            continue
        behind, front = widening.at(len(layer.rows)), widening.at(len(layer.columns))
        outputs, inputs = without(layer.output.keep, layer.mapped_rows), without(layer.present, layer.mapped_columns)
        if layer.mixes:
            layer.rows = rounded(layer.rows, behind.round_to if behind.expands else WHOLE, outputs)
            layer.columns = rounded(layer.columns, front.round_to if front.selects else WHOLE, inputs)
        else:
            multiple = behind.round_to if behind.selects and behind.expands else WHOLE
            layer.rows = layer.columns = rounded(layer.rows, multiple, layer.present & outputs)


def rounded(mask: Mask, multiple: int, candidates: Mask | bool = True) -> Mask:
    """`mask` widened to a multiple of `multiple`, as far as the candidates reach."""
    return filled(mask, -(-how_many(mask) // multiple) * multiple, candidates)
