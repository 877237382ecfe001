"""What a table needs to know of a finished run, read from its folder: small enough to be kept in the repository."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from diffsparse.compaction.plan import Plan
from diffsparse.recipes.book import DataFacts
from diffsparse.recipes.networks import whole_network
from diffsparse.training import Recipe

_KEPT = ("figures", "cost", "zeros", "strength", "network", "asked", "seconds", "training_seconds", "wiring", "graph")


def read_facts(folder: Path, data: DataFacts, group: int) -> dict[str, Any]:
    """The facts of the finished run in `folder`.

    Args:
        folder: where it wrote.
        data: what is known of its data.
        group: channels per group, for group sparsity.
    """
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    facts = {name: result[name] for name in _KEPT if name in result}
    facts["figures"] = result["figures"]["compact"]
    facts["environment"] = result["environment"]
    plan = folder / "plan.json"
    facts["removed"] = {"norms": None, "layers": None, "groups": None}
    if plan.exists() and data.network is None:
        whole, _ = whole_network(Recipe.from_dict(result["config"]), data)
        facts["removed"] = removed_units(whole, Plan.from_json(plan.read_text(encoding="utf-8")), group)
    return facts


def removed_units(whole: nn.Module, plan: Plan, group: int) -> dict[str, dict[str, int] | None]:
    """How many units of `whole` are gone after `plan`, of how many.

    Units are batch norms, layers (convolutions and linear ones), and groups of channels of a batch norm. There are no
    groups if the width of some batch norm is not a multiple of `group`.

    Example:
        >>> import torch, diffsparse as ds
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
        >>> net[1].weight.data[:2], net[1].bias.data[:2] = 0, 0
        >>> removed_units(net, ds.compact(net, torch.zeros(2, 3)).plan, group=2)["groups"]
        {'gone': 1, 'total': 2}
    """
    plans = (*plan.earlier, plan)
    norms = {name: m.num_features for name, m in whole.named_modules() if isinstance(m, _BatchNorm)}
    layers = [name for name, module in whole.named_modules() if isinstance(module, _ConvNd | nn.Linear)]
    left = {name: _channels_left(name, width, plans) for name, width in norms.items()}
    groups = None
    if norms and all(width % group == 0 for width in norms.values()):
        total = sum(norms.values()) // group
        alive = sum(len({channel // group for channel in channels}) for channels in left.values())
        groups = {"gone": total - alive, "total": total}
    return {
        "norms": {"gone": sum(not channels for channels in left.values()), "total": len(norms)},
        "layers": {"gone": sum(_is_gone(name, plans) for name in layers), "total": len(layers)},
        "groups": groups,
    }


def _is_gone(name: str, plans: Sequence[Plan]) -> bool:
    """Whether a plan removes a module, or one around it, or makes it a constant."""
    parts = name.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(outer in plan.layers and plan.layers[outer].drops_module for plan in plans for outer in around)


def _channels_left(name: str, width: int, plans: Sequence[Plan]) -> list[int]:
    """The channels of a batch norm that are left after all plans, by their numbers in the whole network."""
    if _is_gone(name, plans):
        return []
    left = list(range(width))
    for plan in plans:
        if (kept := plan.tensors.get(f"{name}.weight")) is not None and 0 in kept.dims:
            left = [left[index] for index in kept.dims[0]]
    return left
