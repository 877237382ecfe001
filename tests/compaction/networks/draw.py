"""What a block draws: widths, layers, activations, and which of its functions it runs."""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import nn

from tests.compaction.networks.activations import ACTIVATIONS, activation
from tests.compaction.networks.block import Block
from tests.compaction.networks.specification import BlockSpec


@dataclass
class Draw:
    """What one block draws: each name from its own stream, unless the specification gives it."""

    given: BlockSpec
    dims: int
    made: dict[str, Any] = field(default_factory=dict)

    def pick(self, name: str, choices: list[Any]) -> Any:
        """One of `choices`; asked for a second time, `name` draws as `name2`."""
        key, count = name, 1
        while key in self.made:
            count += 1
            key = f"{name}{count}"
        self.made[key] = self.given.get(key, random.Random(f"{self.given['seed']}/{key}").choice(choices))
        return self.made[key]

    def width(self) -> int:
        """A number of channels."""
        return int(self.pick("width", [1, 2, 3, 4, 4, 5, 6, 6, 8, 8, 12]))

    def kind(self, stem: str) -> Any:
        """The module of that name for as many dimensions as the input has."""
        return getattr(nn, f"{stem}{self.dims}d")

    def call(self, stem: str) -> Any:
        """The function of that name for as many dimensions as the input has."""
        return getattr(F, f"{stem}{self.dims}d")

    def conv(self, inputs: int, outputs: int, **settings: Any) -> nn.Module:
        """A convolution; what `settings` leave open is drawn."""
        bias = self.pick("bias", [True, False])
        if "kernel_size" not in settings:
            settings["kernel_size"] = self.pick("kernel", [1, 3, 3, 3])
            settings["padding"] = settings["kernel_size"] // 2
        groups = math.gcd(settings.pop("groups", 1), math.gcd(inputs, outputs))
        conv: nn.Module = self.kind("Conv")(inputs, outputs, bias=bias, groups=groups, **settings)
        return conv

    def norm(self, channels: int) -> nn.Module:
        """A batch norm or none; it carries how it is to be randomised."""
        what = self.pick("norm", ["plain", "plain", "plain", "sparse", "sparse", "sparse", "bare", "own", "none"])
        if what == "none":
            return nn.Identity()
        maker = nn.BatchNorm1d if self.dims == 0 else self.kind("BatchNorm")
        norm: nn.Module = maker(channels, affine=what != "bare", track_running_stats=what != "own")
        norm.sparse = what == "sparse"  # type: ignore[assignment]
        norm.rate = self.pick("rate", [0.0, 0.3, 0.5, 0.5, 0.9, 1.0])
        norm.shifts = self.pick("shifts", [True, False])
        return norm

    def act(self) -> nn.Module:
        """An activation."""
        return activation(self.pick("act", list(ACTIVATIONS)))


def one_of(draw: Draw, run: dict[str, Callable[..., Any]], *, hard: Collection[str] = (), **parts: Any) -> Block:
    """A block that runs one of the functions; those in `hard` compute with the number of channels."""
    how = draw.pick("how", list(run))
    made = Block(run[how], **parts)
    made.hard = how in hard
    return made
