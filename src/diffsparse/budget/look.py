"""What a budget sees when it looks at the gates."""

from dataclasses import dataclass


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
