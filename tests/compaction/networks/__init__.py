"""Random small networks for the property test of compaction.

A network is a `Spec`: plain data, drawn from one integer. Each family of blocks has its own file; importing one adds
its kinds to those that are drawn.
"""

from tests.compaction.networks import (  # noqa: F401
    barriers,
    calls,
    chains,
    computed,
    concat,
    constants,
    gating,
    linear,
    numbers,
    products,
    readers,
    reshapes,
    residual,
    scales,
    sharing,
    spatial,
    splits,
    sums,
    transformers,
)
from tests.compaction.networks.build import build, inputs, options
from tests.compaction.networks.net import Net
from tests.compaction.networks.seeds import specification
from tests.compaction.networks.simpler import simpler
from tests.compaction.networks.specification import Spec

__all__ = ["Net", "Spec", "build", "inputs", "options", "simpler", "specification"]
