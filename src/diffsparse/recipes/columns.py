"""Columns of tables: how each is counted from the facts of a run, by one convention or another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How operations, layers and parameters are counted: one switch for all columns."""

    name: str
    words: str
    """The convention in a sentence."""
    flops_per_mac: int
    removed: bool
    """Whether sparsity is the share of what is gone from the compact network, layers being convolutions and linear
    ones; or the share of zeros, layers being batch norms without a channel (of 163 in a ResNet-164, of 49 in a
    pre-activation ResNet-50)."""
    recursive: bool
    """Whether a wired network costs only what its output depends on, batch norms included; or every edge that is not
    zero and every node that sends something (one hop), without batch norms."""

    @property
    def operations(self) -> str:
        """What operations are called."""
        return "FLOPs" if self.flops_per_mac == 2 else "MACs"


PAPER = Convention(
    name="paper",
    words="FLOPs are 2 x MACs of convolutions and linear layers; sparsity is the share of scales, groups of scales or "
    "batch norms (163 in ResNet-164, 49 in ResNet-50) that are zero, except for a budget, which leaves no zeros but "
    "removes; Mult-Adds and parameters of a wired network count one hop, without batch norms",
    flops_per_mac=2,
    removed=False,
    recursive=False,
)
OWN = Convention(
    name="own",
    words="operations are MACs; sparsity is the share of what is gone from the compact network, with convolutions and "
    "linear layers as layers; Mult-Adds and parameters of a wired network are those of the live graph and its norms",
    flops_per_mac=1,
    removed=True,
    recursive=True,
)
CONVENTIONS = {convention.name: convention for convention in (PAPER, OWN)}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    heading: str
    value: Callable[[Facts, Convention], float | None]
    """The number for a run; None where the run has none."""
    form: str = "{:.1f}"
    """How a number is printed."""
    unit: float = 1.0
    """What a printed number is divided by."""

    def show(self, value: float | None, spread: float | None = None) -> str:
        """The number, and its spread if there is one, as text."""
        if value is None:
            return "-"
        shown = self.form.format(value / self.unit)
        return shown if spread is None else f"{shown} ± {self.form.format(spread / self.unit)}"


def _share(count: Mapping[str, int] | None) -> float | None:
    return None if not count or not count["total"] else 100 * count["gone"] / count["total"]


def _error(facts: Facts, _: Convention) -> float | None:
    accuracy = facts["figures"].get("accuracy")
    return None if accuracy is None else 100 * (1 - accuracy)


def _unit(name: str) -> Callable[[Facts, Convention], float | None]:
    """The share of units that are zero by the paper's convention, or gone by ours."""
    return lambda facts, by: _share(facts["removed" if by.removed else "zero"][name])


def _layers(facts: Facts, by: Convention) -> float | None:
    return _share(facts["removed"]["layers"] if by.removed else facts["zero"]["norms"])


def _wiring(facts: Facts, by: Convention) -> Mapping[str, int] | None:
    wiring = facts.get("wiring")
    found: Mapping[str, int] | None = wiring["recursive" if by.recursive else "one_hop"] if wiring else None
    return found


def _mult_adds(facts: Facts, by: Convention) -> float | None:
    graph = _wiring(facts, by)
    return float(facts["cost"]["compact"]["macs"] if graph is None else graph["mult_adds"])


def _weights(facts: Facts, by: Convention) -> float | None:
    graph = _wiring(facts, by)
    if graph is None:
        return float(facts["cost"]["compact"]["params"])
    return float(graph["params"] + (graph["batch_norm_params"] if by.recursive else 0))


def _of_whole(metric: str) -> Callable[[Facts, Convention], float | None]:
    return lambda facts, _: 100 * facts["cost"]["compact"][metric] / facts["cost"]["plain"][metric]


def _graph(key: str, factor: float = 1.0) -> Callable[[Facts, Convention], float | None]:
    return lambda facts, _: factor * facts["graph"][key] if facts.get("graph") else None


COLUMNS: dict[str, Column] = {
    "channels": Column(heading="channel sparsity %", value=_unit("channels")),
    "layers": Column(heading="layer sparsity %", value=_layers),
    "groups": Column(heading="group sparsity %", value=_unit("groups")),
    "error": Column(heading="top-1 error %", value=_error, form="{:.2f}"),
    "baseline": Column(heading="its baseline %", value=lambda *_: None, form="{:.2f}"),
    "flops": Column(heading="FLOPs %", value=_of_whole("macs")),
    "params": Column(heading="params %", value=_of_whole("params")),
    "mult_adds": Column(heading="Mult-Adds, M", value=_mult_adds, form="{:.3g}", unit=1e6),
    "weights": Column(heading="params, k", value=_weights, form="{:.3g}", unit=1e3),
    "nonzeros": Column(heading="non-zeros", value=_graph("nonzeros"), form="{:,.0f}"),
    "density": Column(
        heading="of all entries %",
        value=lambda facts, _: (
            100 * facts["graph"]["nonzeros"] / facts["graph"]["entries"] if facts.get("graph") else None
        ),
    ),
    "mape": Column(heading="MAPE %", value=lambda facts, _: facts["figures"].get("mape"), form="{:.3f}"),
    "lr1": Column(heading="LR k=1, x100", value=_graph("lr1", 100)),
    "lr2": Column(heading="LR k=2, x100", value=_graph("lr2", 100)),
}
