"""Constants of a compact model are made once for each size of the input, not in every pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 18
"""Numbers that a tensor may have to be kept whole, rather than as what a copy is made from in every pass."""


class Remembered:
    """Keeps the last tensor that was made from a buffer, until something that it depends on is another one.

    It depends on the buffer, the shape of the input, its dtype and device. The buffer may be loaded and moved; a change
    by way of its `.data` is not noticed. Nothing is kept for compilers, exporters and recorders, which have to see how
    the tensor is made. What is kept is in no state dict, and a copy or pickle of this object holds nothing.

    Example:
        >>> kept, buffer, x = Remembered(), torch.ones(1, 3), torch.zeros(2, 5)
        >>> make = lambda: buffer * 2
        >>> kept(buffer, x, x.shape, make) is kept(buffer, x, x.shape, make)
        True
    """

    def __init__(self) -> None:
        # one tuple, so that threads see all of it or nothing
        self._held: tuple[Tensor, tuple[Any, ...], Tensor, int] | None = None

    def __call__(self, buffer: Tensor, input: Tensor, shape: torch.Size, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives for an input of this shape."""
        return self._kept(buffer, input, shape, make) if _runs_as_written(input) else make()

    def whole(
        self, buffer: Tensor, input: Tensor, shape: torch.Size, make: Callable[[], Tensor], read_only: bool
    ) -> Tensor:
        """The same with memory of its own, though `make` may give a view.

        If it is `read_only` and not large, it is always the same tensor; else a copy, because somebody may write to it.
        """
        if not _runs_as_written(input):
            return make().clone()

        def make_whole() -> Tensor:
            made = make()
            return made.clone() if read_only and made.numel() <= LARGEST else made

        made = self._kept(buffer, input, shape, make_whole)
        return made if read_only and made.numel() <= LARGEST else made.clone()

    def _kept(self, buffer: Tensor, input: Tensor, shape: torch.Size, make: Callable[[], Tensor]) -> Tensor:
        held, state = self._held, None
        if held is not None and held[0] is buffer:
            state = _state(buffer, input, shape)
            # somebody may have written to what was given out before
            if held[1] == state and held[2]._version == held[3]:
                return held[2]
        if buffer.is_inference() or torch._C._functorch.peek_interpreter_stack() is not None:
            return make()
        # a tensor of inference mode could not be used in training later
        with torch.inference_mode(False), torch.no_grad():
            made = make()
        self._held = buffer, state or _state(buffer, input, shape), made, made._version
        return made

    def __reduce__(self) -> tuple[type["Remembered"], tuple[()]]:
        return Remembered, ()


def _runs_as_written(input: Tensor) -> bool:
    """Whether this is an ordinary pass, which nobody traces or records."""
    if torch.compiler.is_compiling():
        return False
    watched = torch._C._is_torch_function_mode_enabled() or torch._C._len_torch_dispatch_stack() > 0
    return type(input) is Tensor and not watched and torch._C._get_tracing_state() is None


def _state(buffer: Tensor, input: Tensor, shape: torch.Size) -> tuple[Any, ...]:
    return shape, input.dtype, input.device, buffer.data_ptr(), buffer._version
