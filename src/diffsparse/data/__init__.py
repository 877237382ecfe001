"""Data sets."""

from diffsparse.data.digits import Split, load_digits

__all__ = ["Split", "load_digits"]
