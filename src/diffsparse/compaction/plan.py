"""The plan: plain data that says what stays of every layer; prints, goes to JSON and back."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from diffsparse.compaction import actions
from diffsparse.compaction.actions import Action
from diffsparse.compaction.borrowed import BorrowedSlice
from diffsparse.compaction.slim_attention import CutHeads
from diffsparse.compaction.tensor_slice import Count, TensorSlice
from diffsparse.errors import SparsityError, require_one_of, require_whole
from diffsparse.plain import from_plain, to_plain

FORMAT = 2
ACTIONS: dict[str, type[Action]] = {
    kind.tag: kind
    for kind in (
        *(actions.Slice, actions.RaggedSlice, actions.EmitConstant, actions.EmitMap, actions.Fold),
        *(actions.PassThrough, actions.Remove, actions.SetSizes, BorrowedSlice, CutHeads),
    )
}
"""Actions by their tags."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Something that stayed at its full width, and why."""

    layer: str
    """Name of the module; empty for the model itself."""
    reason: str
    """In words that a user can act on."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What compaction does to a model: made by `compact`, applied by `apply_plan`, replayed by `load`."""

    tensors: dict[str, TensorSlice]
    """Parameters and buffers that become smaller, by name."""
    layers: dict[str, Action]
    """Modules that change, by name, and what happens to them."""
    baked: dict[str, list[int]] = field(default_factory=dict)
    """Modules whose weights were computed and that become ordinary layers first, with the shape of what went in."""
    kept: tuple[Kept, ...] = ()
    """What stayed, and why."""
    earlier: tuple["Plan", ...] = ()
    """Plans that were applied before this one, to a model that became small in several steps."""
    format: int = FORMAT
    """Version of this format."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Plan":
        # nobody changes it, and models carry it with them
        return self

    def within(self, name: str) -> "Plan":
        """The same plan for a model that holds the planned one as its module `name`."""
        return replace(
            self,
            tensors={f"{name}.{key}": kept for key, kept in self.tensors.items()},
            layers={f"{name}.{key}".rstrip("."): action.within(name) for key, action in self.layers.items()},
            baked={f"{name}.{key}": shape for key, shape in self.baked.items()},
            kept=tuple(replace(entry, layer=f"{name}.{entry.layer}".rstrip(".")) for entry in self.kept),
        )

    def to_json(self) -> str:
        """The plan as a JSON text."""
        data: dict[str, Any] = {
            "format": self.format,
            "tensors": {name: to_plain(kept) for name, kept in self.tensors.items()},
            "layers": {name: action.to_plain() for name, action in self.layers.items()},
            "kept": [to_plain(entry) for entry in self.kept],
        }
        if self.baked:
            data["baked"] = self.baked
        if self.earlier:
            data["earlier"] = [json.loads(plan.to_json()) for plan in self.earlier]
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """The plan that `to_json` gave; for any other text, raises a `SparsityError` that names the field."""
        try:
            data: dict[str, Any] = from_plain(dict[str, object], json.loads(text), "the text")
            version = require_whole("format", data["format"], low=1)
            if version == FORMAT:
                layers = from_plain(dict[str, object], data["layers"], "layers")
                return cls(
                    tensors=from_plain(dict[str, TensorSlice], data["tensors"], "tensors"),
                    layers={name: _action(entry, f"'{name}' of layers") for name, entry in layers.items()},
                    baked=from_plain(dict[str, list[Count]], data.get("baked", {}), "baked"),
                    kept=from_plain(tuple[Kept, ...], data["kept"], "kept"),
                    earlier=tuple(cls.from_json(json.dumps(plan)) for plan in data.get("earlier", ())),
                )
        except KeyError as error:
            raise SparsityError(f"not a plan of diffsparse: it has no {error}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise SparsityError(f"not a plan of diffsparse: {error}") from error
        if version > FORMAT:
            raise SparsityError(f"this plan has format {version}, newer than {FORMAT}; update diffsparse")
        old = f"this plan has format {version} of diffsparse 0.1, which this version does not read"
        raise SparsityError(f"{old}; compact the model again to get a new plan")

    def __str__(self) -> str:
        if not self.layers and not self.kept:
            return "nothing to remove"
        width = max((len(name or "(model)") for name in self.layers), default=0)
        notes = dict.fromkeys(self.baked, ", baked: its weights train as those of an ordinary layer from now on")
        lines = [f"{name or '(model)':<{width}}  {action}{notes.get(name, '')}" for name, action in self.layers.items()]
        return "\n".join([*lines, *(f"kept {entry.layer or '(model)'}: {entry.reason}" for entry in self.kept)])


def _action(value: Any, where: str) -> Action:
    """The action that `to_plain` was called on; errors say what is wrong with the data, and `where` it was."""
    entry = from_plain(dict[str, object], value, where)
    tag = entry.pop("action", None)
    require_one_of(f"'action' of {where}", tag, ACTIONS)
    return from_plain(ACTIONS[str(tag)], entry, where)
