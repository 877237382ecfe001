"""A gated sum of components (Eq. 8): learns which of several modules to keep."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module
from diffsparse.gates import Gate, SignedGate, SimplexGate, Source
from diffsparse.gates.protocol import require_own_forward
from diffsparse.nn.weighted_sum import WeightedSum


class SparseSum(nn.Module):
    r"""The module of the base model (Eq. 8): :math:`y(x) = \sum_i a_i f_i(x)`.

    Args:
        components: the f_i; all take the same input and give outputs of one shape.
        gate: a `SimplexGate` (default) or `SignedGate` with one entry per component.

    In eval mode a component whose gate is zero does not run. If all are dropped the output is zero; component 0 runs
    for its shape.

    Example:
        >>> branches = [nn.Linear(4, 2), nn.Linear(4, 2)]
        >>> mix = SparseSum(branches, SignedGate.from_values([1.0, 0.0]))
        >>> x = torch.randn(3, 4)
        >>> torch.allclose(mix.eval()(x), branches[0](x), atol=1e-6)
        True
    """

    def __init__(self, components: Iterable[nn.Module], gate: SimplexGate | SignedGate | None = None) -> None:
        super().__init__()
        self.components = nn.ModuleList(
            require_module(f"component {i} of a SparseSum", component) for i, component in enumerate(components)
        )
        count = len(self.components)
        if count == 0:
            raise SparsityError("SparseSum needs at least one component, got none")
        self.gate = SimplexGate(count) if gate is None else gate
        if not isinstance(self.gate, Gate):
            raise SparsityError(f"the gate of a SparseSum must be a SimplexGate or SignedGate, got {gate!r}")
        if tuple(self.gate.alpha.shape) != (count,):
            raise SparsityError(
                f"the gate of a SparseSum needs one entry per component, shape ({count},), "
                f"got {tuple(self.gate.alpha.shape)}"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        weights = self.gate()
        chosen = range(len(self.components))
        if not self.training and not torch.compiler.is_compiling():
            alive = weights.detach().ne(0).tolist()
            chosen = [i for i in chosen if alive[i]]  # type: ignore[assignment]
        total: Tensor | None = None
        for i in chosen:
            output = self.components[i](*args, **kwargs)
            if total is not None and output.shape != total.shape:
                raise SparsityError(
                    f"the components of a SparseSum must give outputs of one shape; component {i} gives "
                    f"{tuple(output.shape)}, those before it {tuple(total.shape)}"
                )
            term = weights[i].to(output.dtype) * output
            total = term if total is None else total + term
        if total is None:
            return torch.zeros_like(self.components[0](*args, **kwargs))
        return total

    def materialise(self) -> nn.Module:
        """The sum with its weights stored; it shares the components."""
        require_own_forward(self, SparseSum)
        total = WeightedSum(self.components, self.gate())
        total.weights.requires_grad_(self.gate.alpha.requires_grad)
        # not by train(), which would reach the components
        total.training = self.training
        return total

    def parameter_sources(self) -> dict[str, Source]:
        return {"weights": Source("gate.alpha")}
