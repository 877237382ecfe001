"""What learned wirings add to the rest of the package; imported when names are looked up."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.models.factory import MULTIPLIER, Family, register_family, width_multiplier
from diffsparse.plot.picture import save_formats
from diffsparse.training.report import RunReport, cost_cells, register_report
from diffsparse.wiring import methods as methods
from diffsparse.wiring.graph import learned_wiring, wiring_figures
from diffsparse.wiring.mobilenet import WiredMobileNet
from diffsparse.wiring.picture import wiring_figure
from diffsparse.wiring.stage import wired_stages


class WiringReport(RunReport):
    """Edges and costs of the live graph, and its picture.

    The compact form of a wired network holds its edges in dense layers, where most entries may be zero; so the live
    graph is what counts.
    """

    caption = "wired networks: Mult-Adds and parameters of the live graph, in brackets of the complete one"

    def figures(self, model: nn.Module, data: DataSet, say: Callable[[str], None]) -> dict[str, Any] | None:
        graph = learned_wiring(model)
        if graph is None and wired_stages(model):
            needs = "a convolution 'stem', a sequence 'stages' of WiredStages and a linear 'classifier'"
            say(f"MACs and parameters are those of dense layers: to count the graph, a wired network needs {needs}")
        return None if graph is None else wiring_figures(graph, size=data.input_shape[-1])

    def write(self, model: nn.Module, data: DataSet, folder: Path, say: Callable[[str], None]) -> None:
        """Write the picture `wiring` as SVG and PNG; tell the user if matplotlib is missing."""
        graph = learned_wiring(model)
        assert graph is not None
        try:
            save_formats(wiring_figure(graph), folder, "wiring")
        except SparsityError as error:
            say(f"no picture of the wiring: {error}")

    def columns(self, result: dict[str, Any], cells: dict[str, str]) -> dict[str, str]:
        now, complete = (
            {"macs": cost["mult_adds"], "params": cost["params"] + cost["batch_norm_params"]}
            for cost in (result["wiring"]["recursive"], result["wiring"]["complete"])
        )
        return cells | {"zeros": f"{cells['zeros']} of edges"} | cost_cells(now, complete)


def _wired(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    kind, width = match["kind"], width_multiplier(match, 32)
    return WiredMobileNet(
        num_classes, in_channels=in_channels, width=width, imagenet=kind == "imagenet", small=kind == "small"
    )


register_family(
    Family(
        grammar="wired-mobilenet[-<multiplier>][-imagenet|-small]",
        pattern=rf"wired-mobilenet{MULTIPLIER}(?:-(?P<kind>imagenet|small))?",
        build=_wired,
        examples=("wired-mobilenet", "wired-mobilenet-0.25", "wired-mobilenet-0.25-small"),
    )
)
register_report("wiring", WiringReport())
