"""Many small gates evaluated as one padded batch, so that a penalty costs a few kernels, not dozens a layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffsparse.functional import signed_threshold
from diffsparse.gates import Gate, SignedGate


class GateBatch:
    """Signed gates of one group each, evaluated together: rows (gates, widest), padded with zeros.

    A padded `alpha` of zero adds nothing to the norm of its row, stays zero and gets no gradient, so every row is
    the gate's own value followed by zeros. The copy into the padded rows has unique targets and is deterministic.
    """

    def __init__(self, gates: Sequence[SignedGate]) -> None:
        self.gates = list(gates)
        self.widest = max(gate.group_size for gate in self.gates)
        starts = [row * self.widest for row in range(len(self.gates))]
        self.positions = torch.cat(
            [torch.arange(start, start + gate.group_size) for start, gate in zip(starts, self.gates, strict=True)]
        )

    def rows(self) -> Tensor:
        """The values of all gates, shape (gates, widest)."""
        flat = torch.cat([gate.alpha.flatten() for gate in self.gates])
        if self.positions.device != flat.device:
            self.positions = self.positions.to(flat.device)
        padded = flat.new_zeros(len(self.gates) * self.widest).index_copy(0, self.positions, flat)
        beta = torch.stack([gate.beta for gate in self.gates])
        return signed_threshold(padded.view(-1, self.widest), beta, rgf=self.gates[0].rgf)


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
