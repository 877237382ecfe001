"""A change to a model that must not change what it computes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.example import Example, map_tensors, tensors_in
from diffsparse.undisturbed import undisturbed

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}


@contextmanager
def unchanged(model: nn.Module, layers: Iterable[nn.Module], example: Example) -> Iterator[None]:
    """Restores these layers, and raises, if what is done to them changes the outputs of `model` on the example."""
    before = _outputs(model, example)
    saved = [(layer, type(layer), dict(layer._modules), _copies(layer)) for layer in layers]
    try:
        yield
        if not all(map(_is_close, before, _outputs(model, example))):
            raise SparsityError(
                f"gates would change what {type(model).__name__} computes: some layer does not read its weights as "
                "'self.weight'. Choose the others with only="
            )
    except Exception:
        for layer, kind, children, tensors in saved:
            layer.__class__ = kind
            layer._modules.clear()
            layer._modules.update(children)
            for key, tensor in tensors.items():
                layer._parameters[key].data.copy_(tensor)  # type: ignore[union-attr]
        raise


def _copies(layer: nn.Module) -> dict[str, Tensor]:
    return {key: parameter.detach().clone() for key, parameter in layer.named_parameters(recurse=False)}


def _outputs(model: nn.Module, example: Example) -> list[Tensor]:
    """What `model` gives for the example in eval mode, with the same random numbers each time."""
    copied: Any = map_tensors(torch.clone, (example.args, example.kwargs))
    with undisturbed(model, device=example.device):
        torch.manual_seed(0)
        return [tensor.clone() for tensor in tensors_in(model(*copied[0], **copied[1]))]


def _is_close(before: Tensor, after: Tensor) -> bool:
    if not before.is_floating_point() or before.shape != after.shape:
        return before.shape == after.shape
    scale = before.double().nan_to_num().abs().max().clamp_min(1e-30) if before.numel() else 1.0
    apart = (before.double() - after.double()).nan_to_num().abs() / scale
    return not bool((apart > _TOLERANCE.get(before.dtype, 0.1)).any())
