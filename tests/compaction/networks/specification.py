"""A network as plain data, so that a failing case can be made smaller and still be written down."""

import json
from dataclasses import asdict, dataclass
from typing import Any

BlockSpec = dict[str, Any]
"""Kind and seed of a block; what else it draws can be given as well."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A network as plain data."""

    seed: int
    dims: int
    """Spatial dimensions of the input; 0 for rows of features."""
    channels: int
    size: int
    blocks: tuple[BlockSpec, ...]
    returns: str = "tensor"
    """`tensor`, `tuple`, `dict` or `dataclass`."""
    training: bool = False
    """Whether the model is in training mode when it is compacted."""
    round_to: int = 1
    fold: bool = False

    def to_json(self) -> str:
        """The specification as a JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """Read what `to_json` wrote."""
        data = json.loads(text)
        return cls(**{**data, "blocks": tuple(data["blocks"])})
