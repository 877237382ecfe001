"""Calls that a recorder sees as one and can look into: scripted functions, and attention written in Python."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

# Functions of Python that hand themselves over to a mode before they do anything.
_WRITTEN_IN_PYTHON = {F.multi_head_attention_forward}


def can_look_into(func: Callable[..., Any]) -> bool:
    """Whether `inside` shows the operations that this function is made of."""
    return func in _WRITTEN_IN_PYTHON


def inside(func: Callable[..., Any], mode: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function so that `mode` sees its operations instead of the function itself."""
    functions: Any = F
    asks = functions.has_torch_function
    functions.has_torch_function = lambda *_: False
    try:
        with mode:
            return func(*args, **kwargs)
    finally:
        functions.has_torch_function = asks


@contextmanager
def scripted_functions_as_written() -> Iterator[None]:
    """Run the Python code of functions made by `torch.jit.script`, whose operations no mode would see."""
    kind: Any = torch.jit.ScriptFunction
    call = kind.__call__

    def call_as_written(scripted: Any, *args: Any, **kwargs: Any) -> Any:
        written = getattr(scripted, "_torchdynamo_inline", None)
        return call(scripted, *args, **kwargs) if written is None else written(*args, **kwargs)

    kind.__call__ = call_as_written
    try:
        yield
    finally:
        kind.__call__ = call
