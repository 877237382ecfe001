"""Ways of making a network smaller: the method of this package, and those it is compared with."""

from diffsparse.methods.gated import Gated
from diffsparse.methods.method import Cut, Method, NetworkKind, choose_method, register_method
from diffsparse.methods.proximal import Proximal
from diffsparse.methods.scratch import Scratch
from diffsparse.methods.settings import Sparsifying
from diffsparse.methods.slimming import Slimming
from diffsparse.methods.torch_pruning import TorchPruning

__all__ = [
    "Cut",
    "Gated",
    "Method",
    "NetworkKind",
    "Proximal",
    "Scratch",
    "Slimming",
    "Sparsifying",
    "TorchPruning",
    "choose_method",
    "register_method",
]
