"""The module that runs the blocks of a specification."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass
class Pair:
    """What a model may return."""

    first: Tensor
    rest: list[Tensor]


class Net(nn.Module):
    """Blocks one after the other; those tapped are returned as well."""

    def __init__(self, returns: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        self.taps: list[bool] = []
        self.returns = returns

    @property
    def hard(self) -> bool:
        """Whether the code of a block computes with the number of channels: `compact` may have to be careful."""
        return any(getattr(module, "hard", False) for module in self.blocks.modules())

    @property
    def takes_two(self) -> bool:
        """Whether a block takes a second input."""
        return any(getattr(one, "takes_second", False) for one in self.blocks)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        seen = []
        for one, tapped in zip(self.blocks, self.taps, strict=True):
            x = one(x, y) if getattr(one, "takes_second", False) else one(x)
            if tapped:
                seen.append(x)
        if self.returns == "tuple":
            return x, *seen
        if self.returns == "dict":
            return {"out": x, "seen": seen}
        return Pair(x, seen) if self.returns == "dataclass" else x
