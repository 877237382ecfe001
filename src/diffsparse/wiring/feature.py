"""What learned wirings add to the rest of the package; imported when names are looked up."""

import re

from torch import nn

from diffsparse.models.factory import MULTIPLIER, Family, register_family, width_multiplier
from diffsparse.training.report import register_report
from diffsparse.wiring import methods as methods
from diffsparse.wiring.mobilenet import WiredMobileNet
from diffsparse.wiring.report import WiringReport


def _wired(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    kind = match["kind"]
    return WiredMobileNet(
        num_classes,
        in_channels=in_channels,
        width=width_multiplier(match, 32),
        imagenet=kind == "imagenet",
        small=kind == "small",
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
