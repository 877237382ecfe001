"""The ordinary layer that computes the same as a module whose weights are computed: weight norm and its kin."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diffsparse.compaction.graph import Node
from diffsparse.errors import SparsityError
from diffsparse.module_tree import OF_TORCH

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
BAKED: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "linear": (nn.Linear, _CONV[:3]),
    **{f"conv{d}d": (kind, _CONV) for d, kind in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), 1)},
    **{
        f"conv_transpose{d}d": (kind, _TRANSPOSED)
        for d, kind in enumerate((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), 1)
    },
}
"""Operators with weights: the modules that they are, and the names of their arguments."""
_FORWARD_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


class _Found(BaseException):
    """The operation that was looked for, with its arguments; passes through the user's `except Exception`."""

    def __init__(self, op: str, arguments: dict[str, Any]) -> None:
        self.op, self.arguments = op, arguments


class _UntilLayer(TorchFunctionMode):
    """Stops at the operation with weights that reads `operand`."""

    def __init__(self, operand: Tensor) -> None:
        super().__init__()
        self.operand = operand

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        op = getattr(func, "__name__", "")
        if op in BAKED:
            given = _arguments(op, args, kwargs or {})
            if given["input"] is self.operand:
                raise _Found(op, given)
        return func(*args, **(kwargs or {}))


def _arguments(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator with weights, by name."""
    return {**dict(zip(BAKED[op][1], args, strict=False)), **kwargs}


def ordinary_form(node: Node) -> nn.Module:
    """The module that a layer with computed weights is, with no memory for its weights."""
    return _ordinary(node.op, _arguments(node.op, node.args, node.kwargs))


def _ordinary(op: str, arguments: dict[str, Any]) -> nn.Module:
    """The module that calls `op` with these arguments, with no memory for its weights."""
    kind, names = BAKED[op]
    shape, bias = arguments["weight"].shape, arguments.get("bias") is not None
    if kind is nn.Linear:
        return nn.Linear(shape[1], shape[0], bias, device="meta")
    settings = {name: arguments[name] for name in names[3:] if name in arguments}
    groups = settings.get("groups", 1)
    widths = (shape[0], shape[1] * groups) if names is _TRANSPOSED else (shape[1] * groups, shape[0])
    return kind(*widths, tuple(shape[2:]), bias=bias, device="meta", **settings)


def baked(module: nn.Module, shape: list[int], like: Tensor) -> nn.Module:
    """An ordinary layer with the weights that `module` computes, in eval mode, for an input of this shape.

    It has the user's forward hooks and attributes, too.

    Raises:
        SparsityError: `module` is not one convolution or linear layer of its input.
    """
    operand = torch.zeros(shape, dtype=like.dtype, device=like.device)
    training = [part for part in module.modules() if part.training]
    try:
        with torch.no_grad(), _UntilLayer(operand):
            module.eval()(operand)
    except _Found as found:
        layer = _ordinary(found.op, found.arguments)
        trained = any(parameter.requires_grad for parameter in module.parameters())
        for role in ("weight", "bias"):
            if (tensor := found.arguments.get(role)) is not None:
                setattr(layer, role, nn.Parameter(tensor.detach().clone(), requires_grad=trained))
    else:
        raise SparsityError(f"{type(module).__name__} no longer applies one layer to its input")
    finally:
        for part in training:
            part.training = True
    for key, value in vars(module).items():
        own = key not in OF_TORCH and key not in vars(layer) and key not in layer._parameters
        if own or key in _FORWARD_HOOKS:
            vars(layer)[key] = value
    return layer


def hooks_only_compute_weights(module: nn.Module) -> bool:
    """Whether what runs before `module` is the weight norm, spectral norm or pruning of torch, if anything."""
    return all(type(hook).__module__.startswith("torch.nn.utils.") for hook in module._forward_pre_hooks.values())
