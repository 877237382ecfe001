"""The extra loss term: strength times R of every chosen gate, and the base of all that makes zeros during training."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.functional import signed_threshold
from diffsparse.gates import Gate, SignedGate, chosen_gates
from diffsparse.penalties.norms import L1, Norm
from diffsparse.penalties.strength import FixedStrength, StrengthController
from diffsparse.selection import Selection


class Regulariser:
    """The base of everything that makes zeros while a model trains: a term of the loss, or a step of the optimiser."""

    strength: float
    """Lambda."""
    keeps_zeros: ClassVar[bool] = False
    """Whether zeros would come back without lambda, so that `settle` has to keep them."""
    settled: bool = False
    """Whether what is zero stays zero from now on."""
    reached: bool = True
    """Whether the model is as small as was asked for, so that it may be kept."""

    def __call__(self) -> Tensor | None:
        """The term to add to the loss; None if it acts elsewhere."""
        return None

    def settle(self) -> None:
        """Keep what is zero from now on, where that needs doing."""

    def step_done(self) -> bool:
        """Called after each step of the optimiser; True if model and optimiser have just become small in place."""
        return False

    def let_follow(self, average: Any) -> None:
        """Called with the moving average of the model after `step_done` was true; it has to become small too."""

    def before_restoring(self, state: dict[str, Any]) -> bool:
        """Make model and optimiser as small in place as they were when `state` was taken; True if that was done.

        Their own states, which are loaded next, then fit.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the parameters."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the parameters are already restored."""


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
        self.norm = L1() if norm is None else norm
        if not isinstance(self.norm, Norm):
            raise SparsityError(f"norm must be an instance of Norm, such as L1() or GroupL21(size=12), got {norm!r}")
        if (strength is None) == (schedule is None):
            raise SparsityError(f"give either a strength or a schedule, got strength={strength}, schedule={schedule}")
        if schedule is not None and not isinstance(schedule, StrengthController):
            raise SparsityError(
                f"schedule must be a controller such as GradualStrength, got {schedule!r}; a fixed lambda is a strength"
            )
        self.controller = schedule or FixedStrength(strength)  # type: ignore[arg-type]
        self.gates = chosen_gates(model, only)
        self._sorted: tuple[object, tuple[list[GateBatch], list[Gate]]] | None = None
        for name, gate in self.gates.items():
            gate.check_finite(name)
            for rows in gate.groups(gate.alpha.detach()):
                self.norm.check_size(rows.shape[-1], name or type(gate).__name__)

    @property
    def strength(self) -> float:
        """The lambda in force; set it to change a fixed one."""
        return self.controller.strength

    @strength.setter
    def strength(self, value: float) -> None:
        if not isinstance(self.controller, FixedStrength):
            raise SparsityError("the strength of this penalty follows its schedule and cannot be set")
        self.controller.strength = value

    def __call__(self) -> Tensor:
        return self.strength * self.regularizer()

    def regularizer(self) -> Tensor:
        """R(a) alone, without lambda."""
        batches, single = self._batched()
        terms = [self.norm(batch.rows()) for batch in batches]
        terms += [torch.stack([self.norm(rows) for rows in gate.groups(gate())]).mean() for gate in single]
        return torch.stack([term.to(terms[0].device) for term in terms]).sum()

    def _batched(self) -> tuple[list["GateBatch"], list[Gate]]:
        """The gates sorted into batches; sorted again when a device, dtype or rgf has changed."""
        placed = tuple((gate.rgf, gate.alpha.device, gate.alpha.dtype) for gate in self.gates.values())
        if self._sorted is None or self._sorted[0] != placed:
            self._sorted = placed, batch_gates(list(self.gates.values()))
        return self._sorted[1]

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


class GateBatch:
    """Many small gates evaluated as rows (gates, widest) of one tensor, so that a penalty costs only a few kernels.

    The gates are signed and have one group each. Rows are padded with zeros: an `alpha` of zero adds nothing to the
    norm of its row, stays zero and gets no gradient. The copy into the rows has unique targets and is deterministic.
    """

    def __init__(self, gates: Sequence[SignedGate]) -> None:
        self.gates = list(gates)
        self.widest = max(gate.group_size for gate in self.gates)
        rows = torch.arange(len(self.gates) * self.widest).view(-1, self.widest)
        self.positions = torch.cat([row[: gate.group_size] for row, gate in zip(rows, self.gates, strict=True)])

    def rows(self) -> Tensor:
        """The values of all gates, shape (gates, widest)."""
        flat = torch.cat([gate.alpha.flatten() for gate in self.gates])
        self.positions = self.positions.to(flat.device)
        padded = flat.new_zeros(len(self.gates) * self.widest).index_copy(0, self.positions, flat)
        beta = torch.stack([gate.beta for gate in self.gates])
        return signed_threshold(padded.view(-1, self.widest), beta, rgf=self.gates[0].rgf)

    def values(self) -> list[Tensor]:
        """The values of each gate."""
        return [row[: gate.group_size].view_as(gate.alpha) for row, gate in zip(self.rows(), self.gates, strict=True)]


def batch_gates(gates: Sequence[Gate]) -> tuple[list[GateBatch], list[Gate]]:
    """Gates that can share a batch (plain signed vectors of one dtype and device), and the others."""
    batches: dict[object, list[SignedGate]] = {}
    single: list[Gate] = []
    for gate in gates:
        if type(gate) is SignedGate and gate.beta.dim() == 0:
            batches.setdefault((gate.rgf, gate.alpha.dtype, gate.alpha.device), []).append(gate)
        else:
            single.append(gate)
    return [GateBatch(members) for members in batches.values()], single
