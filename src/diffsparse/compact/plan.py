"""The plan: plain data that says what stays of every layer; prints, goes to JSON and back."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from diffsparse.errors import SparsityError

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TensorSlice:
    """What stays of one parameter or buffer."""

    dims: dict[int, list[int]] = field(default_factory=dict)
    """Dimension to the indices that stay along it."""
    columns: list[list[int]] | None = None
    """For the weight of a grouped convolution: inputs that stay in each group that stays."""
    heights: list[int] | None = None
    """For groups of different sizes: outputs that stay in each of them; columns are then padded with zeros."""


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
    def from_json(cls, text: str) -> "Plan":
        """The plan that `to_json` gave."""
        try:
            data: dict[str, Any] = json.loads(text)
            if data["format"] > FORMAT:
                raise SparsityError(f"this plan has format {data['format']}, newer than {FORMAT}; update diffsparse")
            return cls(
                tensors={name: _slice_from(entry) for name, entry in data["tensors"].items()},
                layers={name: _layer_from(entry) for name, entry in data["layers"].items()},
                kept=tuple(Kept(**entry) for entry in data["kept"]),
                format=data["format"],
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise SparsityError(f"not a plan of diffsparse: {error}") from error

    def __str__(self) -> str:
        if not self.layers and not self.kept:
            return "nothing to remove"
        names = [name or "(model)" for name in self.layers]
        width = max((len(name) for name in names), default=0)
        lines = [f"{name:<{width}}  {_words(layer)}" for name, layer in zip(names, self.layers.values(), strict=True)]
        lines += [f"kept {entry.layer or '(model)'}: {entry.reason}" for entry in self.kept]
        return "\n".join(lines)


def _words(layer: LayerPlan) -> str:
    parts = [f"{key} {pair[0]} -> {pair[1]}" for key, pair in (("in", layer.inputs), ("out", layer.outputs)) if pair]
    parts += [layer.what] if layer.what != "sliced" else []
    if layer.input_size is not None:
        parts.append(f"valid for input size {[n for n in layer.input_size if n is not None]} only")
    parts += ["select"] if layer.select is not None else []
    parts += [f"expand to {layer.width}"] if layer.expand is not None else []
    parts += ["new bias"] if layer.adds_bias else []
    return ", ".join(parts)


def _slice_from(entry: dict[str, Any]) -> TensorSlice:
    return TensorSlice(**{**entry, "dims": {int(dim): kept for dim, kept in entry["dims"].items()}})


def _layer_from(entry: dict[str, Any]) -> LayerPlan:
    pairs = {key: None if entry[key] is None else tuple(entry[key]) for key in ("inputs", "outputs")}
    return LayerPlan(**{**entry, **pairs})
