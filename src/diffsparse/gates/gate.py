"""What all gates share: free parameters in, values with exact zeros out, and an ordinary form for compaction."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module, require_number
from diffsparse.selection import Selection, select

# A dropped entry starts half-way to its threshold: it can come back, but not by rounding.
DROPPED = 0.5


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

    Any `nn.Module` with these two methods is one, and `compact`, `apply_plan`, `load` and `slice_optimizer` handle it.
    CONTRIBUTING.md has an example.
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


class _Wide(nn.Module):
    """Its parameters stay in float32 or wider when the model around it goes to half precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def widely(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrowed = moved.is_floating_point() and moved.dtype != gate_dtype(moved.dtype)
            return tensor.to(moved.device) if narrowed else moved

        super()._apply(widely, recurse)  # type: ignore[no-untyped-call]
        return self


class Gate(_Wide, ABC):
    """Owns free parameters `alpha` and thresholds; calling it gives the gate's values, some of them exactly zero.

    Parameters and computation stay in float32 (or wider) under autocast and in a half precision model: a threshold of
    1/(n^2+n) does not survive there. Any optimiser, `state_dict`, `deepcopy` and DDP work, as for other parameters.

    Multiply with `gate()` in a forward pass of your own: `compact` stores the values and removes the dead channels.
    """

    alpha: nn.Parameter
    dims: tuple[int, ...] | None = None
    """Dimensions of one competition group; None for a gate that has no such choice."""
    smallest_step: ClassVar[float] = 1.0
    """Entries that rounding dropped are revived in steps of the rounding error of a number of at least this size."""

    def __init__(self, rgf: float | None = None) -> None:
        super().__init__()
        self.rgf = None if rgf is None else require_number("rgf", rgf, low=0)

    @abstractmethod
    def forward(self) -> Tensor:
        """The gate's values, in float32 or wider."""

    @abstractmethod
    def groups(self, values: Tensor) -> tuple[Tensor, ...]:
        """Views of `values` of shape (groups, entries), one row per competition group, one view per kind of group."""

    @abstractmethod
    def set_values(self, values: Tensor) -> None:
        """Change the parameters so that the gate has these values, up to float rounding; zeros are exact.

        Values that the gate had at different times may be mixed: a gate that normalises scales them as it needs.
        """

    def materialise(self) -> nn.Module:
        """A module that stores the values as they are now, and returns them when called."""
        return StoredGate(self(), requires_grad=self.alpha.requires_grad).train(self.training)

    def parameter_sources(self) -> dict[str, Source]:
        return {"values": Source("alpha")}

    @property
    def frozen(self) -> bool:
        """Whether its thresholds are not trained, so that no entry is meant to die."""
        return not any(p.requires_grad for p in self.parameters(recurse=False) if p is not self.alpha)

    def check_finite(self, name: str) -> None:
        """Raise if a parameter of this gate is NaN or infinite; the message gives `name`, or else the gate's type."""
        for key, parameter in self.named_parameters(recurse=False):
            require_finite(f"{key} of gate '{name or type(self).__name__}'", parameter)

    def _revive(self, values: Tensor) -> None:
        """Push entries of `values` that rounding dropped just over their threshold, in growing steps."""
        alpha = self.alpha.detach()
        scale = alpha.abs().clamp(min=self.smallest_step)
        step = torch.finfo(alpha.dtype).eps * scale * values.sign().to(alpha.dtype)
        for k in range(24):
            lost = (self().detach() == 0) & (values != 0)
            if not bool(lost.any()):
                return
            alpha.add_(torch.where(lost, 2**k * step, 0.0))

    def extra_repr(self) -> str:
        return f"{tuple(self.alpha.shape)}" + ("" if self.rgf is None else f", rgf={self.rgf}")


class StoredGate(_Wide):
    """The values of a gate as a parameter that is trained directly."""

    def __init__(self, values: Tensor, *, requires_grad: bool) -> None:
        super().__init__()
        self.values = nn.Parameter(values.detach().clone(), requires_grad=requires_grad)

    def forward(self) -> Tensor:
        return self.values

    def extra_repr(self) -> str:
        return f"{tuple(self.values.shape)}"


def named_gates(model: nn.Module) -> Iterator[tuple[str, Gate]]:
    """Every gate of `model` once, with its qualified name."""
    for name, module in model.named_modules():
        if isinstance(module, Gate):
            yield name, module


def chosen_gates(model: nn.Module, only: Selection | None) -> dict[str, Gate]:
    """The gates that `only` chooses, by name; raises if there is none."""
    gates = dict(named_gates(require_module("model", model)))
    if not gates:
        raise SparsityError(
            f"{type(model).__name__} has no gates; call diffsparse.sparsify(model) first, "
            "or put SignedGate, SimplexGate, MatrixGate or a sparse layer into it"
        )
    chosen = select(model, only, gates.values(), "gate")
    return {name: gate for name, gate in gates.items() if gate in chosen}


def checked_values(values: Tensor | Sequence[Any]) -> Tensor:
    """`values` as a detached float64 tensor, finite and floating-point."""
    try:
        given = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):
        message = f"the values of a gate must be a tensor or nested lists of numbers, got {values!r}"
        raise SparsityError(message) from None
    if given.is_complex():
        raise SparsityError(f"the values of a gate must be real numbers, got {given.dtype}")
    if not given.is_floating_point():
        given = given.to(torch.get_default_dtype())
    require_finite("the values of a gate", given)
    return given.to(torch.float64)


def require_finite(name: str, tensor: Tensor) -> None:
    """Raise if an entry of `tensor` is NaN or infinite."""
    if not bool(torch.isfinite(tensor).all()):
        bad = tensor[~torch.isfinite(tensor)][0].item()
        raise SparsityError(f"{name} must be finite numbers, got {bad}")


def require_room(rows: Tensor, dtype: torch.dtype) -> None:
    """Raise if the magnitudes of a competition group, rows of `rows`, add up to more than `dtype` can hold."""
    total = rows.abs().sum(-1).max().item()
    if not total <= torch.finfo(dtype).max:
        raise SparsityError(f"the values of a gate are too large for {dtype}: parameters of one group sum to {total:g}")


def closed_beta(n: int) -> float:
    """A threshold that drops all n equal entries of a group: 1.5 times their share."""
    share = min(1.5 / n, (1 + 1 / n) / 2)
    # the share of a single entry is 1, which no finite beta gives but by rounding
    return math.log(share / (1 - share)) if share < 1 else 40.0


def gate_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """float32 or wider: thresholds are lost in half precision."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


def values_dtype(values: Tensor | Sequence[Any]) -> torch.dtype:
    """The dtype of a gate that starts at `values`."""
    return gate_dtype(values.dtype if isinstance(values, Tensor) and values.is_floating_point() else None)
