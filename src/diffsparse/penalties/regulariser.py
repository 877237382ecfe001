"""What pushes towards sparsity during training."""

from typing import Any, ClassVar

from torch import Tensor


class Regulariser:
    """The base of everything that makes zeros while a model trains: a term of the loss, or a step of the optimiser."""

    strength: float
    """Lambda."""
    keeps_zeros: ClassVar[bool] = False
    """Whether zeros would come back without lambda, so that `settle` has to keep them."""
    settled: bool = False
    """Whether what is zero stays zero from now on."""

    def __call__(self) -> Tensor | None:
        """The term to add to the loss; None if it acts elsewhere."""
        return None

    def settle(self) -> None:
        """Keep what is zero from now on, where that needs doing."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the parameters."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the parameters are already restored."""
