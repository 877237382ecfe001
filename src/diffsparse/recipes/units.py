"""How many channels, batch norms and groups are zero after training, and how many are gone from the compact network."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from diffsparse.compaction.plan import Plan
from diffsparse.gates import named_gates

Units = dict[str, dict[str, int] | None]


def zero_units(model: nn.Module, group: int) -> Units:
    """Zeros among the gates of a trained model, or among the scales of its batch norms if it has no gates.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        >>> net[1].weight.data[1:] = 0
        >>> zero_units(net, group=2)
        {'channels': {'gone': 3, 'total': 4}, 'norms': {'gone': 0, 'total': 1}, 'groups': {'gone': 1, 'total': 2}}
    """
    with torch.no_grad():
        alive = {name: gate() != 0 for name, gate in named_gates(model)} or {
            name: module.weight != 0 for name, module in _norms(model).items()
        }
    return _counted({name: _places(mask) for name, mask in alive.items()}, {n: len(m) for n, m in alive.items()}, group)


def removed_units(whole: nn.Module, plan: Plan, group: int) -> Units:
    """What is gone of `whole` after `plan`: also what nobody reads any more, and what no longer depends on the input.

    Layers are convolutions and linear ones.

    Example:
        >>> import diffsparse as ds
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
        >>> net[1].weight.data[:2], net[1].bias.data[:2] = 0, 0
        >>> removed_units(net, ds.compact(net, torch.zeros(2, 3)).plan, group=2)["groups"]
        {'gone': 1, 'total': 2}
    """
    plans = (*plan.earlier, plan)
    widths = {name: norm.num_features for name, norm in _norms(whole).items()}
    layers = [name for name, module in whole.named_modules() if isinstance(module, _ConvNd | nn.Linear)]
    left = {name: _channels_left(name, width, plans) for name, width in widths.items()}
    gone = sum(_is_gone(name, plans) for name in layers)
    return {**_counted(left, widths, group), "layers": {"gone": gone, "total": len(layers)}}


def _counted(left: Mapping[str, list[int]], widths: Mapping[str, int], group: int) -> Units:
    """Counts from the channels that are left; no groups if some width is not a multiple of `group`."""
    groups = None
    if widths and all(width % group == 0 for width in widths.values()):
        total = sum(widths.values()) // group
        alive = sum(len({channel // group for channel in channels}) for channels in left.values())
        groups = {"gone": total - alive, "total": total}
    channels = sum(widths.values())
    return {
        "channels": {"gone": channels - sum(map(len, left.values())), "total": channels},
        "norms": {"gone": sum(not own for own in left.values()), "total": len(widths)},
        "groups": groups,
    }


def _norms(model: nn.Module) -> dict[str, _BatchNorm]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def _places(mask: Tensor) -> list[int]:
    places: list[int] = mask.nonzero().flatten().tolist()
    return places


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
