"""What users give to be drawn."""

from typing import Any

from torch import nn

from diffsparse.errors import SparsityError


def compacted(given: object, also: str = "") -> Any:
    """What `compact` returned, or what a budget made small; raises for anything else, and names what is taken, too."""
    small = getattr(given, "small", given)
    if not isinstance(getattr(small, "original", None), nn.Module):
        raise SparsityError(f"give {also}what `compact` returned, or a budget, not {type(given).__name__}")
    return small
