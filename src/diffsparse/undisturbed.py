"""Running a model without a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def undisturbed(*models: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode without gradients; afterwards the training flags, buffers and random state are what they were.

    Example:
        >>> model = nn.Dropout()
        >>> with undisturbed(model, device=torch.device("cpu")):
        ...     model.training, torch.is_grad_enabled()
        (False, False)
        >>> model.training, torch.is_grad_enabled()
        (True, True)
    """
    modules = [module for model in models for module in model.modules()]
    training = [(module, module.training) for module in modules]
    buffers = [
        (module, name, buffer, _snapshot(buffer))
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    generators = [device] if device.type == "cuda" else []
    # Not inference mode: a tensor that the model caches in it could not be trained with later.
    with torch.random.fork_rng(generators), torch.no_grad():
        try:
            for model in models:
                model.eval()
            yield
        finally:
            for module, flag in training:
                module.training = flag
            for module, name, buffer, snapshot in buffers:
                _restore(module, name, buffer, snapshot)


def _snapshot(buffer: Tensor) -> tuple[int, Tensor] | None:
    # A tensor made in inference mode has no version and cannot be written to outside it.
    return None if buffer.is_inference() else (buffer._version, buffer.clone())


def _restore(module: nn.Module, name: str, buffer: Tensor, snapshot: tuple[int, Tensor] | None) -> None:
    if snapshot is not None and buffer._version != snapshot[0]:
        buffer.copy_(snapshot[1])
    if getattr(module, name) is not buffer:
        setattr(module, name, buffer)
