"""The extra loss term: strength times R of every chosen gate."""

from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.gates import Gate, chosen_gates
from diffsparse.penalties.batch import GateBatch, batch_gates
from diffsparse.penalties.norms import L1, Norm
from diffsparse.penalties.regulariser import Regulariser
from diffsparse.penalties.strength import FixedStrength, StrengthController
from diffsparse.selection import Selection


class Penalty(Regulariser):
    r"""The second term of the loss (Eq. 13): :math:`\lambda\,R(a)` over the gates of a model.

    A gate whose entries compete in rows and in columns counts half of each, as in the paper.

    Args:
        model: the gated model; its gates are looked up once, their parameters read at every call.
        norm: the regulariser, `L1()` by default.
        strength: lambda, fixed. It acts through the sum of learning rates over all steps, so a short run needs a
            larger one than a long run.
        schedule: or a controller of lambda, such as `GradualStrength`; call `step()` at the end of each epoch.
        only: the gates to penalise: a name pattern or a type, which choose all gates inside what they match, a
            function of name and gate, or several of these.

    Calling it gives a scalar tensor to add to the loss.

    Under DDP it is added on every process. It gives a gradient to every gate, also to those in blocks that the forward
    pass skipped. Plain DDP and `static_graph=True` are fine with that; with `find_unused_parameters=True` DDP takes the
    gates of a skipped block for unused and raises an error when their gradients come.

    Example:
        >>> import diffsparse as ds
        >>> model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), start=0.5)
        >>> penalty = Penalty(model, strength=0.01)
        >>> round(penalty().item(), 4)
        0.04
    """

    def __init__(
        self,
        model: nn.Module,
        norm: Norm | None = None,
        strength: float | None = None,
        schedule: StrengthController | None = None,
        *,
        only: Selection | None = None,
    ) -> None:
        norm = L1() if norm is None else norm
        if not isinstance(norm, Norm):
            raise SparsityError(f"norm must be one of L1(), GroupL21(...), ExclusiveL12() or Lp(p), got {norm!r}")
        if (strength is None) == (schedule is None):
            raise SparsityError(f"give either a strength or a schedule, got strength={strength}, schedule={schedule}")
        if schedule is not None and not isinstance(schedule, StrengthController):
            raise SparsityError(
                f"schedule must be a controller such as GradualStrength, got {schedule!r}; a fixed lambda is a strength"
            )
        self.norm = norm
        self.controller = schedule or FixedStrength(strength)  # type: ignore[arg-type]
        self.gates = chosen_gates(model, only)
        self._sorted: tuple[object, tuple[list[GateBatch], list[Gate]]] | None = None
        for name, gate in self.gates.items():
            gate.check_finite(name)
            for rows in gate.groups(gate.alpha.detach()):
                norm.check_size(rows.shape[-1], name or type(gate).__name__)

    @property
    def strength(self) -> float:
        """The lambda in force; set it to change a fixed one."""
        return self.controller.strength

    @strength.setter
    def strength(self, value: float) -> None:
        if not isinstance(self.controller, FixedStrength):
            raise SparsityError("the strength of this penalty follows its schedule and cannot be set")
        self.controller.strength = value

    def regularizer(self) -> Tensor:
        """R(a) alone, without lambda."""
        batches, single = self._batched()
        terms = [self.norm(batch.rows()) for batch in batches]
        for gate in single:
            views = gate.groups(gate())
            terms.append(torch.stack([self.norm(rows) for rows in views]).mean())
        device = terms[0].device
        return torch.stack([term.to(device) for term in terms]).sum()

    def _batched(self) -> tuple[list[GateBatch], list[Gate]]:
        """The gates sorted into batches; sorted again when a device, dtype or rgf has changed."""
        placed = tuple((gate.rgf, gate.alpha.device, gate.alpha.dtype) for gate in self.gates.values())
        if self._sorted is None or self._sorted[0] != placed:
            self._sorted = placed, batch_gates(list(self.gates.values()))
        return self._sorted[1]

    def __call__(self) -> Tensor:
        return self.strength * self.regularizer()

    def step(self, epochs: float = 1.0) -> None:
        """Move the schedule on by one epoch, or by a fraction of one; a fixed strength stays."""
        self.controller.step(epochs)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on with the same lambda."""
        return self.controller.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.controller.load_state_dict(state)

    def __repr__(self) -> str:
        return f"Penalty({self.norm!r}, strength={self.strength:g}, {len(self.gates)} gates)"
