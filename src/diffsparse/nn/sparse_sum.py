"""A gated sum of components (Eq. 8): learns which of several modules to keep."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_module
from diffsparse.gates import Gate, SignedGate, SimplexGate, Source
from diffsparse.gates.gate import require_own_forward


def _weighted_sum(components: Mapping[int, nn.Module], weights: Tensor, args: Any, kwargs: Any) -> Tensor:
    total: Tensor | None = None
    for i, component in components.items():
        output = component(*args, **kwargs)
        if total is not None and output.shape != total.shape:
            raise SparsityError(
                f"the components of a SparseSum must give outputs of one shape; component {i} gives "
                f"{tuple(output.shape)}, those before it {tuple(total.shape)}"
            )
        term = weights[i].to(output.dtype) * output
        total = term if total is None else total + term
    assert total is not None
    return total


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
        if (shape := tuple(self.gate.alpha.shape)) != (count,):
            raise SparsityError(f"the gate of a SparseSum needs one entry per component, shape ({count},), got {shape}")

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        weights = self.gate()
        components = dict(enumerate(self.components))
        if not self.training and not torch.compiler.is_compiling():
            alive = weights.detach().ne(0).tolist()
            components = {i: component for i, component in components.items() if alive[i]}
        if not components:
            return torch.zeros_like(self.components[0](*args, **kwargs))
        return _weighted_sum(components, weights, args, kwargs)

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


class WeightedSum(nn.Module):
    """y(x) = sum of w_i f_i(x), with one trained weight per component: a `SparseSum` whose gate has been evaluated.

    Components may leave; those that stay keep their names.
    """

    def __init__(self, components: nn.ModuleList, weights: Tensor) -> None:
        super().__init__()
        self.components = components
        self.weights = nn.Parameter(weights.detach().clone())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return _weighted_sum(dict(enumerate(self.components)), self.weights, args, kwargs)

    def dead_parts(self) -> tuple[dict[str, list[int]], list[str]]:
        """What does not change the output: `compact` asks any module that has this method.

        Returns:
            The entries along dimension 0 that stay, by the name of the tensor, and the names of children to remove.
        """
        alive = [i for i, weight in enumerate(self.weights.tolist()) if weight != 0] or [0]
        dead = [f"components.{key}" for i, key in enumerate(self.components._modules) if i not in alive]
        return {"weights": alive} if dead else {}, dead
