"""Ways of making a network smaller: the package's own, and those it compares itself with."""

from diffsparse.baselines.gated import Gated
from diffsparse.baselines.method import Cut, Method, Regulariser
from diffsparse.baselines.proximal import Proximal
from diffsparse.baselines.scratch import Scratch
from diffsparse.baselines.slimming import Slimming
from diffsparse.baselines.torch_pruning import TorchPruning
from diffsparse.baselines.wired import Wired, WiredGates, WiredLargest, WiredProximal, WiredRandom, wired_stages

__all__ = [
    "Cut",
    "Gated",
    "Method",
    "Proximal",
    "Regulariser",
    "Scratch",
    "Slimming",
    "TorchPruning",
    "Wired",
    "WiredGates",
    "WiredLargest",
    "WiredProximal",
    "WiredRandom",
    "wired_stages",
]
