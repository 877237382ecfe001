"""What a plan can do to a module: one class per action, each of which applies and prints itself."""

from typing import Any

from diffsparse.compaction.actions.action import Action, ModelEdit
from diffsparse.compaction.actions.leaving import EmitConstant, EmitMap, Fold, PassThrough, Remove
from diffsparse.compaction.actions.slicing import RaggedSlice, Slice
from diffsparse.errors import SparsityError
from diffsparse.plain import from_plain, to_plain

ACTIONS: dict[str, type[Action]] = {
    kind.tag: kind for kind in (Slice, RaggedSlice, EmitConstant, EmitMap, Fold, PassThrough, Remove)
}
"""Actions by what JSON calls them."""


def action_to_plain(action: Action) -> dict[str, Any]:
    """The action as plain data, with its tag."""
    return {"action": action.tag, **to_plain(action)}


def action_from_plain(value: Any, where: str) -> Action:
    """The action that `action_to_plain` was given; raises if it is no such data."""
    entry = from_plain(dict[str, object], value, where)
    if "action" not in entry:
        raise SparsityError(f"{where} has no 'action'")
    tag = entry.pop("action")
    if not isinstance(tag, str) or tag not in ACTIONS:
        raise SparsityError(f"'action' of {where} must be one of {', '.join(ACTIONS)}, got {tag!r:.50}")
    return from_plain(ACTIONS[tag], entry, where)


__all__ = [
    "ACTIONS",
    "Action",
    "EmitConstant",
    "EmitMap",
    "Fold",
    "ModelEdit",
    "PassThrough",
    "RaggedSlice",
    "Remove",
    "Slice",
    "action_from_plain",
    "action_to_plain",
]
