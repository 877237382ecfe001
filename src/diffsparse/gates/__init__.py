"""Modules that own the parameters of gates."""

from diffsparse.gates.gate import Gate, GatedModule, Source, chosen_gates, named_gates
from diffsparse.gates.matrix import MatrixGate
from diffsparse.gates.signed import SignedGate
from diffsparse.gates.simplex import SimplexGate

__all__ = ["Gate", "GatedModule", "MatrixGate", "SignedGate", "SimplexGate", "Source", "chosen_gates", "named_gates"]
