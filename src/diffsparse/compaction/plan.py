"""The plan: plain data that says what stays of every layer; prints, goes to JSON and back."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from diffsparse.compaction.fields import (
    Reader,
    count,
    counts,
    each,
    mapping,
    of_kind,
    one_of,
    or_none,
    pair,
    read_fields,
    rising,
    rising_by_dim,
    sequence,
)
from diffsparse.errors import SparsityError, require_whole

FORMAT = 1
WHATS = ("sliced", "ragged", "constant", "map", "folded", "identity", "removed")


@dataclass(frozen=True, kw_only=True)
class TensorSlice:
    """What stays of one parameter or buffer."""

    dims: dict[int, list[int]] = field(default_factory=dict)
    """Dimension to the indices that stay along it."""
    columns: list[list[int]] | None = None
    """For the weight of a grouped convolution: inputs that stay in each group that stays."""
    heights: list[int] | None = None
    """For groups of different sizes: outputs that stay in each of them; columns are then padded with zeros."""
    shape: list[int] | None = None
    """Shape before; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """What happens to one module."""

    what: str
    """`sliced`, `ragged` (a grouped convolution whose groups have different sizes), `constant`, `map`, `folded` (into
    the layer in front), `identity` (gives its input back) or `removed`."""
    inputs: tuple[int, int] | None = None
    """Input channels before and after."""
    outputs: tuple[int, int] | None = None
    """Output channels before and after."""
    select: list[int] | None = None
    """Positions to take from the input, where it is wider than the layer."""
    expand: list[int] | None = None
    """Positions of the layer's outputs, where what follows is wider than the layer."""
    width: int = 0
    """Channels of the output as others see it."""
    dim: int = 1
    """Where channels lie, counted from the end if negative."""
    adds_bias: bool = False
    """Whether the layer gets a bias that it did not have."""
    groups: int | None = None
    """Groups after, for a grouped convolution."""
    blocks: list[list[int]] | None = None
    """For a ragged convolution: outputs and inputs of each group."""
    window: list[list[int]] | None = None
    """For a constant: how the layer changed spatial sizes."""
    transposed: bool = False
    """For a constant: whether it was a transposed convolution."""
    shape: list[int] | None = None
    """For a map: its shape without the batch."""
    input_size: list[int | None] | None = None
    """For a map: the size of the input it is valid for, without the batch; None for any number of channels."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Something that stayed at its full width, and why."""

    layer: str
    """Name of the module, empty for the model itself."""
    reason: str
    """In words that a user can act on."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What compaction does to a model: made by `compact`, applied by `apply_plan`, replayed by `load`."""

    tensors: dict[str, TensorSlice]
    """Parameters and buffers that become smaller, by name."""
    layers: dict[str, LayerPlan]
    """Modules that change, by name."""
    kept: tuple[Kept, ...] = ()
    """What stayed and why."""
    format: int = FORMAT
    """Version of this format."""

    @property
    def needs_size(self) -> bool:
        """Whether the compact model is valid for the size of the example only."""
        return any(layer.what == "map" for layer in self.layers.values())

    def to_json(self) -> str:
        """The plan as a JSON text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """The plan that `to_json` gave; raises a `SparsityError` that names the field if it is no such text."""
        try:
            data = mapping("the text", json.loads(text))
            version = require_whole("format", data["format"], low=1)
            if version <= FORMAT:
                tensors, layers = (mapping(key, data[key]) for key in ("tensors", "layers"))
                return cls(
                    tensors={name: _slice_from(name, entry) for name, entry in tensors.items()},
                    layers={name: _layer_from(name, entry) for name, entry in layers.items()},
                    kept=tuple(map(_kept_from, sequence("kept", data["kept"]))),
                    format=version,
                )
        except KeyError as error:
            raise SparsityError(f"not a plan of diffsparse: it has no {error}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise SparsityError(f"not a plan of diffsparse: {error}") from error
        raise SparsityError(f"this plan has format {version}, newer than {FORMAT}; update diffsparse")

    def __str__(self) -> str:
        if not self.layers and not self.kept:
            return "nothing to remove"
        names = [name or "(model)" for name in self.layers]
        width = max((len(name) for name in names), default=0)
        lines = [
            f"{name:<{width}}  {_describe(layer)}" for name, layer in zip(names, self.layers.values(), strict=True)
        ]
        lines += [f"kept {entry.layer or '(model)'}: {entry.reason}" for entry in self.kept]
        return "\n".join(lines)


def _describe(layer: LayerPlan) -> str:
    parts = [f"{key} {pair[0]} -> {pair[1]}" for key, pair in (("in", layer.inputs), ("out", layer.outputs)) if pair]
    parts += [layer.what] if layer.what != "sliced" else []
    if layer.input_size is not None:
        parts.append(f"valid for input size {[n for n in layer.input_size if n is not None]} only")
    parts += ["select"] if layer.select is not None else []
    parts += [f"expand to {layer.width}"] if layer.expand is not None else []
    parts += ["new bias"] if layer.adds_bias else []
    return ", ".join(parts)


def _slice_from(name: str, entry: Any) -> TensorSlice:
    return TensorSlice(**read_fields(name, entry, _SLICE_FIELDS, required=("dims",)))


def _layer_from(name: str, entry: Any) -> LayerPlan:
    layer = LayerPlan(**read_fields(name, entry, _LAYER_FIELDS, required=("what",)))
    needs = {"map": ("shape", "input_size"), "ragged": ("blocks",)}.get(layer.what, ())
    for key in (*needs, *(("outputs",) if layer.adds_bias else ())):
        if getattr(layer, key) is None:
            raise SparsityError(f"'{name}' needs '{key}'")
    return layer


def _kept_from(entry: Any) -> Kept:
    return Kept(**read_fields("kept", entry, _KEPT_FIELDS, required=("layer", "reason")))


_KEPT_FIELDS: dict[str, Reader] = {"layer": of_kind(str, "a text"), "reason": of_kind(str, "a text")}
_SLICE_FIELDS: dict[str, Reader] = {
    "dims": rising_by_dim,
    "columns": or_none(each(rising)),
    "heights": or_none(counts),
    "shape": or_none(counts),
}
_LAYER_FIELDS: dict[str, Reader] = {
    "what": one_of(*WHATS),
    "inputs": or_none(pair),
    "outputs": or_none(pair),
    "select": or_none(rising),
    "expand": or_none(rising),
    "width": count,
    "dim": require_whole,
    "adds_bias": of_kind(bool, "true or false"),
    "groups": or_none(count),
    "blocks": or_none(each(counts)),
    "window": or_none(each(counts)),
    "transposed": of_kind(bool, "true or false"),
    "shape": or_none(counts),
    "input_size": or_none(each(or_none(count))),
}
