"""A sum of components with fixed places and ordinary weights."""

from typing import Any

from torch import Tensor, nn


class WeightedSum(nn.Module):
    """y(x) = sum of w_i f_i(x), with one trained weight per component: a `SparseSum` whose gate has been evaluated.

    Components may leave; those that stay keep their names.
    """

    def __init__(self, components: nn.ModuleList, weights: Tensor) -> None:
        super().__init__()
        self.components = components
        self.weights = nn.Parameter(weights.detach().clone())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        total: Tensor | None = None
        for i, component in enumerate(self.components.children()):
            output = component(*args, **kwargs)
            term = self.weights[i].to(output.dtype) * output
            total = term if total is None else total + term
        assert total is not None
        return total

    def dead_parts(self) -> tuple[dict[str, list[int]], list[str]]:
        """What does not change the output: `compact` asks any module that has this method.

        Returns:
            The entries along dimension 0 that stay, by the name of the tensor, and the names of children to remove.
        """
        alive = [i for i, weight in enumerate(self.weights.tolist()) if weight != 0] or [0]
        dead = [f"components.{key}" for i, key in enumerate(self.components._modules) if i not in alive]
        return {"weights": alive} if dead else {}, dead
