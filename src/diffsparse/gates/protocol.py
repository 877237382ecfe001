"""What compaction asks of a module with gates: its ordinary form, and where the parameters of that form come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from diffsparse.errors import SparsityError


@dataclass(frozen=True)
class Source:
    """The parameter of a gated module that a parameter of its ordinary form continues."""

    name: str
    """Its qualified name, relative to the gated module."""
    keeps_state: bool = False
    """Whether the optimiser's state (momentum, moments) carries over: only where both mean the same entry by entry."""


@runtime_checkable
class GatedModule(Protocol):
    """A module that computes weights with exact zeros in them. `compact` replaces it by its ordinary form.

    Any `nn.Module` with these two methods is one. `compact`, `apply_plan`, `load` and `slice_optimizer` then handle it.

    Example:
        >>> import torch, diffsparse as ds
        >>> class Gated(nn.Module):
        ...     def __init__(self, inputs, outputs):
        ...         super().__init__()
        ...         self.linear, self.gate = nn.Linear(inputs, outputs, bias=False), ds.SignedGate(outputs)
        ...
        ...     def forward(self, x):
        ...         return self.gate() * self.linear(x)
        ...
        ...     def materialise(self):
        ...         plain = nn.Linear(self.linear.in_features, self.linear.out_features, bias=False)
        ...         plain.weight.data = (self.gate()[:, None] * self.linear.weight).detach()
        ...         return plain.train(self.training)
        ...
        ...     def parameter_sources(self):
        ...         return {"weight": Source("linear.weight")}
        >>> model = nn.Sequential(Gated(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> model[0].gate = ds.SignedGate.from_values([0.5, 0.0, 0.0])
        >>> ds.compact(model, torch.randn(2, 4)).model[0]
        Linear(in_features=4, out_features=1, bias=False)
    """

    def materialise(self) -> nn.Module:
        """The ordinary module that computes the same. It may share submodules with this one: they are copied later.

        A module that should stay as it is returns itself.
        """

    def parameter_sources(self) -> Mapping[str, Source]:
        """Where parameters of the ordinary module come from, by name; the others keep their name and their state."""


def require_own_forward(module: nn.Module, kind: type[nn.Module]) -> None:
    """Raise if a subclass of `kind` has another forward pass, which the ordinary form would not have."""
    if type(module).forward is not kind.forward:
        raise SparsityError(
            f"{type(module).__name__} has a forward of its own, which its ordinary form would not have; give it a "
            f"materialise() of its own, or put what it does into a module around a {kind.__name__}"
        )
