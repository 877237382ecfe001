"""Modules that own the free parameters of gates."""

from diffsparse.gates.choose import chosen_gates
from diffsparse.gates.gate import Gate, named_gates
from diffsparse.gates.matrix import MatrixGate
from diffsparse.gates.signed import SignedGate
from diffsparse.gates.simplex import SimplexGate
from diffsparse.gates.vector import VectorGate

__all__ = ["Gate", "MatrixGate", "SignedGate", "SimplexGate", "VectorGate", "chosen_gates", "named_gates"]
