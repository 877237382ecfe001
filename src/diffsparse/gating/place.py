"""Gates put on the sites that were found; weights are divided by what the gates start at, so the function stays."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from diffsparse.gates import SignedGate
from diffsparse.gates.gate import gate_dtype, require_finite
from diffsparse.gating.sites import Site
from diffsparse.nn import GatePart, gate_layer

Compete = Literal["layer", "network"]

THRESHOLD = 0.1
"""Where thresholds start, as a share of the mean: near enough to the entries that pressure reaches them."""
LEAST = 0.02
"""The smallest value that a gate starts at, as a share of the mean of its group."""


@torch.no_grad()
def place_gates(
    model: nn.Module, sites: Iterable[Site], compete: Compete, start: float | None, rgf: float | None
) -> None:
    """Gate these sites of `model`, in place."""
    for group in _groups(sites, compete):
        for site in group:
            for key, parameter in model.get_submodule(site.layer).named_parameters(recurse=False):
                require_finite(f"{key} of '{site.layer}'", parameter)
        weight = next(model.get_submodule(group[0].layer).parameters(recurse=False))
        values = _start_values(torch.cat([site.importance for site in group]), start)
        gate = SignedGate.from_values(values.to(weight.device, gate_dtype(weight.dtype)), rgf=rgf, threshold=THRESHOLD)
        gate.keeps_sizes = True
        begin = 0
        for site in group:
            part = GatePart(gate, begin, begin + site.entries, site.block, site.kind)
            begin += site.entries
            _place(model.get_submodule(site.layer), site, part)


def _groups(sites: Iterable[Site], compete: Compete) -> list[list[Site]]:
    """Sites whose entries compete with each other."""
    groups: dict[tuple[str, ...], list[Site]] = {}
    for site in sites:
        # an entry that is alone in its group never dies
        whole = compete == "network" or site.entries == 1
        groups.setdefault((site.kind,) if whole else (site.kind, site.layer), []).append(site)
    return [group for group in groups.values() if sum(site.entries for site in group) > 1]


def _start_values(importance: Tensor, start: float | None) -> Tensor:
    if start is not None:
        return torch.full_like(importance, start)
    if not bool(importance.max() > importance.min()):
        return torch.ones_like(importance)
    logs = (importance / importance.mean()).clamp_min(LEAST).log()
    values = ((logs - logs.mean()) / logs.std()).exp()
    return values / values.mean()


def _place(layer: nn.Module, site: Site, part: GatePart) -> None:
    values, stored = part(), layer._parameters["weight"]
    assert stored is not None
    shape = [-1 if dim == site.input_dim else 1 for dim in range(stored.dim())]
    stored.div_((values.view(shape) if site.side == "inputs" else values).to(stored.dtype))
    bias = layer._parameters.get("bias")
    if site.side == "outputs" and bias is not None:
        bias.div_(values.to(bias.dtype))
    gate_layer(layer, site.side, part, input_dim=site.input_dim)
