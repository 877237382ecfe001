"""What has gates in a model, and why the rest has none."""

from dataclasses import dataclass

from torch import nn

from diffsparse.errors import require_module
from diffsparse.nn import GatedLayer, GatePart, SparseBatchNorm

_LEFT = "_diffsparse_left_alone"
"""Attribute of a model: layers that `sparsify` gave no gate, with the reason."""


@dataclass(frozen=True, kw_only=True)
class GatingReport:
    """Gates of a model by layer; prints as a table."""

    gated: dict[str, str]
    """By the name of a layer, what its gates stand for."""
    left: dict[str, str]
    """By the name of a layer without gates, the reason."""

    def __str__(self) -> str:
        width = max((len(name) for name in self.gated), default=0)
        lines = [f"{name or '(model)':<{width}}  {what}" for name, what in self.gated.items()]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name or "(model)")
        return "\n".join([*lines, *(f"no gate, {reason}: {', '.join(names)}" for reason, names in reasons.items())])


def note_left(model: nn.Module, left: dict[str, str]) -> None:
    """Remember which layers of `model` got no gate, and why."""
    if left:
        vars(model)[_LEFT] = dict(left)


def gating_report(model: nn.Module) -> GatingReport:
    """What has gates in `model`, and which layers that could be seen at work have none, with the reason.

    Example:
        >>> import torch, diffsparse as ds
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
        >>> print(gating_report(ds.sparsify(model, torch.randn(8, 4))))
        2  16 neurons
        no gate, no layer computes what it reads: 0
    """
    gated: dict[str, str] = {}
    for name, module in require_module("model", model).named_modules():
        if isinstance(module, GatedLayer):
            parts = (module.part("inputs"), module.part("outputs"))
            gated[name] = "; ".join(_describe(part) for part in parts if part is not None)
        elif isinstance(module, SparseBatchNorm):
            gated[name] = f"{module.num_features} channels of a batch norm"
    left = {name: reason for name, reason in vars(model).get(_LEFT, {}).items() if name not in gated}
    return GatingReport(gated=gated, left=left)


def _describe(part: GatePart) -> str:
    count, all_entries = part.stop - part.start, len(part.gate.alpha)
    what = "the whole layer" if part.kind == "layers" else f"{count} {part.kind}"
    width = f" of {part.block} inputs" if part.block > 1 else ""
    return f"{what}{width}" + ("" if count == all_entries else f", among {all_entries} that compete")
