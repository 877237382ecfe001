"""What a table needs to know of a finished run, read from its folder: small enough to be kept in the repository."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.checkpoint import load
from diffsparse.compaction.plan import Plan
from diffsparse.gating import sparsify
from diffsparse.methods.slimming import without_smallest
from diffsparse.recipes.book import DataFacts
from diffsparse.recipes.networks import whole_network
from diffsparse.recipes.units import Units, removed_units, zero_units
from diffsparse.training import Recipe
from diffsparse.training.run import TRAINED

_KEPT: tuple[str, ...] = ("figures", "cost", "zeros", "strength", "network", "data", "asked", "wiring", "graph")
_KEPT += ("seconds", "training_seconds")
_NONE: Units = {"channels": None, "norms": None, "groups": None, "layers": None}


def read_facts(folder: Path, data: DataFacts, group: int) -> dict[str, Any]:
    """The facts of the finished run in `folder`.

    Args:
        folder: where it wrote.
        data: what is known of its data.
        group: channels per group, for group sparsity.
    """
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    facts = {name: result[name] for name in _KEPT if name in result}
    facts |= {"figures": result["figures"]["compact"], "environment": result["environment"]}
    facts |= {"zero": _NONE, "removed": _NONE}
    # networks that are wired or built from their data have no channels to count
    if (folder / "plan.json").exists() and data.network is None and "wiring" not in result:
        recipe = Recipe.from_dict(result["config"])
        # a subset of the classes is data of the same name
        whole, _ = whole_network(recipe, replace(data, outputs=result["data"]["outputs"]))
        plan = Plan.from_json((folder / "plan.json").read_text(encoding="utf-8"))
        facts["removed"] = removed_units(whole, plan, group)
        trained = _with_zeros(folder, recipe, whole, result)
        facts["zero"] = facts["removed"] if trained is None else zero_units(trained, group)
    return facts


def _with_zeros(folder: Path, recipe: Recipe, whole: nn.Module, result: dict[str, Any]) -> nn.Module | None:
    """The trained network at full width, with zeros in it; None if it became small on the way, as for a budget."""
    method = recipe.sparsifying.method
    if method == "ds":
        return None if result["asked"] else load(folder / TRAINED, sparsify(whole, compete="layer"))
    trained = load(folder / TRAINED, whole) if result["network"] == recipe.model else None
    if trained is not None and method == "slimming":
        return without_smallest(trained, result["zeros"]["zero"])
    return trained
