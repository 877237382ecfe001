"""Whether other programs use the machine, so that times mean little."""

import os

BUSY = 1.3
"""Load per core from which on times are too long."""


def load_warning() -> str:
    """A sentence if more is running than there are cores; empty if not, or if the system does not tell.

    Example:
        >>> load_warning() == "" or "busy" in load_warning()
        True
    """
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < BUSY * cores:
        return ""
    return (
        f"the machine is busy (a load of {load:.1f} on {cores} cores), so times are longer than they should be; "
        "OMP_NUM_THREADS=1 suffers least"
    )
