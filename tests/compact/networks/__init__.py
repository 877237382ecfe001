"""Random small networks for the property test of compaction.

A network is a `Spec`: plain data, drawn from one integer. Each family of blocks has its own file; importing one adds
its kinds to those that are drawn.
"""

from tests.compact.networks import (  # noqa: F401
    barriers,
    chains,
    concat,
    gating,
    linear,
    numbers,
    reshapes,
    residual,
    scales,
    sharing,
    spatial,
    splits,
    sums,
)
from tests.compact.networks.build import build, inputs, options
from tests.compact.networks.net import Net
from tests.compact.networks.seeds import specification
from tests.compact.networks.simpler import simpler
from tests.compact.networks.specification import Spec

__all__ = ["Net", "Spec", "build", "inputs", "options", "simpler", "specification"]
