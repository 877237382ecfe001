"""Layers whose weights are multiplied by gates: entries for blocks of inputs, or one entry for all outputs."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeVar, cast

from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.gates import SignedGate, Source
from diffsparse.module_tree import OF_TORCH, is_sharded

Layer = TypeVar("Layer", bound=nn.Module)
Side = Literal["inputs", "outputs"]

GATES: dict[Side, str] = {"inputs": "input_gate", "outputs": "output_gate"}
"""Names of the submodules that hold the gates of each side."""


class GatePart(nn.Module):
    """A run of entries of a gate that several layers may share, each entry for a block of channels.

    Args:
        gate: of one dimension.
        start, stop: which of its entries.
        block: how many channels one entry stands for.
        kind: what an entry stands for, in one word.

    Example:
        >>> GatePart(SignedGate.from_values([1.0, 0.0, 0.5]), 1, 3, block=2, kind="heads")().tolist()
        [0.0, 0.0, 0.5, 0.5]
    """

    def __init__(self, gate: SignedGate, start: int, stop: int, block: int = 1, kind: str = "channels") -> None:
        super().__init__()
        if gate.alpha.dim() != 1 or not 0 <= start < stop <= len(gate.alpha):
            shape = tuple(gate.alpha.shape)
            raise SparsityError(f"entries {start} to {stop} are no part of a gate of shape {shape}")
        self.gate, self.start, self.stop, self.block = gate, start, stop, block
        gate.kind = kind

    def forward(self) -> Tensor:
        values: Tensor = self.gate()[self.start : self.stop]
        return values if self.block == 1 else values.repeat_interleave(self.block)

    @property
    def kind(self) -> str:
        """What an entry stands for, which is the same for all parts of the gate."""
        return self.gate.kind

    @property
    def channels(self) -> int:
        return (self.stop - self.start) * self.block

    def extra_repr(self) -> str:
        return f"{self.kind}, entries {self.start} to {self.stop}, {self.block} channel(s) each"


class GatedLayer(nn.Module):
    """What `gate_layer` adds to the class of a layer: its weight and bias are what is stored, times the gates.

    The layer keeps its class as a base, its parameters and their names. Whoever reads `weight` or `bias`, the layer's
    own forward pass or somebody else's, gets the product.
    """

    ordinary: ClassVar[type[nn.Module]]
    """The class of the layer before it got gates."""
    input_dim: int
    """The dimension of the weight that holds inputs."""

    def part(self, side: Side) -> GatePart | None:
        """The gate on this side, if there is one."""
        return cast(GatePart | None, self._modules.get(GATES[side]))

    @property
    def weight(self) -> Tensor:
        stored = cast(Tensor, self._parameters["weight"])
        if is_sharded(stored):
            # nobody computes with it now, and `fully_shard` looks for the parameter itself
            return stored
        if (part := self.part("inputs")) is not None:
            shape = [-1 if dim == self.input_dim else 1 for dim in range(stored.dim())]
            stored = stored * part().view(shape).to(stored.dtype)
        return self._with_output_gate(stored)

    @property
    def bias(self) -> Tensor | None:
        stored = self._parameters.get("bias")
        return stored if stored is None or is_sharded(stored) else self._with_output_gate(stored)

    def _with_output_gate(self, stored: Tensor) -> Tensor:
        part = self.part("outputs")
        # one entry for all outputs
        return stored if part is None else stored * part().to(stored.dtype)

    def materialise(self) -> nn.Module:
        """The layer without gates: the products are stored."""
        layer = self.ordinary.__new__(self.ordinary)
        nn.Module.__init__(layer)
        layer.training = self.training
        vars(layer).update({key: value for key, value in vars(self).items() if key not in OF_TORCH | {"input_dim"}})
        for key, stored in self._parameters.items():
            if stored is None:
                layer.register_parameter(key, None)
                continue
            product: Tensor = getattr(self, key) if key in {"weight", "bias"} else stored
            layer.register_parameter(key, nn.Parameter(product.detach().clone(), stored.requires_grad))
        for key, buffer in self._buffers.items():
            persistent = key not in self._non_persistent_buffers_set
            layer.register_buffer(key, None if buffer is None else buffer.clone(), persistent=persistent)
        return layer

    def parameter_sources(self) -> dict[str, Source]:
        """Weight and bias are those of the ordinary layer, entry by entry, up to the scale of the gates."""
        return {key: Source(key, keeps_state=True) for key, held in self._parameters.items() if held is not None}

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., nn.Module], tuple[type[nn.Module]], dict[str, Any]]:
        # the class is made at run time, and pickle would not find it by its name
        return _blank, (self.ordinary,), vars(self).copy()


def gate_layer(layer: Layer, side: Side, part: GatePart, *, input_dim: int = 1) -> Layer:
    """Multiply inputs or outputs of `layer` by a gate, in place; returns the layer.

    Args:
        layer: a layer without submodules that has its weights in a parameter `weight`, and perhaps a `bias`.
        side: a gate on inputs has as many channels as the layer has inputs; a gate on outputs has one entry for all.
        part: the entries.
        input_dim: the dimension of the weight that holds inputs.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> _ = gate_layer(layer, "inputs", GatePart(SignedGate.from_values([1.0, 0.0]), 0, 2, block=2))
        >>> layer.weight.count_nonzero(0).tolist(), layer
        ([2, 2, 0, 0], GatedLinear(
          in_features=4, out_features=2, bias=True
          (input_gate): GatePart(
            channels, entries 0 to 2, 2 channel(s) each
            (gate): SignedGate((2,))
          )
        ))
    """
    weight = layer._parameters["weight"]
    assert weight is not None
    expected = weight.shape[input_dim] if side == "inputs" else 1
    if part.channels != expected:
        raise SparsityError(
            f"a gate on the {side} of this {type(layer).__name__} needs {expected} channels, got {part.channels}"
        )
    if not isinstance(layer, GatedLayer):
        layer.__class__ = _gated(type(layer))  # type: ignore[assignment, arg-type]
        vars(layer).update(input_dim=input_dim)
    layer._modules[GATES[side]] = part
    return layer


@lru_cache(maxsize=256)
def _gated(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"Gated{kind.__name__}", (GatedLayer, kind), {"__module__": __name__, "ordinary": kind})


def _blank(kind: type[nn.Module]) -> nn.Module:
    """A gated layer of this class without contents, for pickle and `copy`."""
    gated = _gated(kind)  # type: ignore[arg-type]
    return gated.__new__(gated)
