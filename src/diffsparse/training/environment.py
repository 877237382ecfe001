"""What a run ran on."""

import os
import platform
from typing import Any

import numpy
import torch


def environment() -> dict[str, Any]:
    """Versions and the machine, as plain data."""
    from diffsparse.version import __version__

    return {
        "diffsparse": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
