"""What a budget sees when it looks at the gates."""

import warnings
from dataclasses import dataclass, field

from diffsparse.errors import SparsityWarning


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a look at the gates has seen, and decided."""

    step: int
    macs: float
    """Share of the whole network's, as are the next two."""
    params: float
    bytes: float
    wanted: float
    """Where the ramp was: the share of the whole cost that was allowed."""
    alive: int
    """Gate entries that live."""
    strength: float
    """Lambda of the pressure from now on."""
    latency: float | None = None
    """Share of the whole network's latency: predicted, and in the last look measured; None if nobody asked for it."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Live entries by what they stand for: channels, neurons, heads, layers."""


def warn_of_closed(kinds: dict[str, int]) -> None:
    """Warn of each kind of which nothing lives, in a network that is now small."""
    for kind in (kind for kind, count in kinds.items() if not count):
        words = f"this budget has closed all {kind}; if the network needs some, give it a larger budget"
        warnings.warn(f"{words}, or leave {kind} out of the kinds of sparsify", SparsityWarning, stacklevel=2)
