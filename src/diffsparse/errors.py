"""The errors and warnings of the package, and the checks of arguments that raise them."""

import math
import numbers
from collections.abc import Collection
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


class SparsityError(ValueError):
    """The package was called in a wrong way; the message names the value and what was expected."""


class CheckpointError(SparsityError):
    """A file cannot be written, read or fitted to a model; the message names the file and the cause."""


class SparsityWarning(UserWarning):
    """Something happened that the caller may not have meant; the message names the layer."""


def require_number(
    name: str, value: object, *, low: float | None = None, above: float | None = None, high: float | None = None
) -> float:
    """`value` as a float; raises unless it is a finite real number, not a bool, within the bounds."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if real else math.nan  # type: ignore[arg-type]
    if (
        # torch.compile traces comparisons of a number that changes between calls, but not math.isfinite
        not -math.inf < number < math.inf
        or (low is not None and number < low)
        or (above is not None and number <= above)
        or (high is not None and number > high)
    ):
        raise SparsityError(f"{name} must be a finite number{_bounds(low, above, high)}, got {value!r}")
    return number


def require_whole(name: str, value: object, *, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int; raises unless it is a whole number, not a bool, within the bounds."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    number = int(value) if whole else 0  # type: ignore[call-overload]
    if not whole or (low is not None and number < low) or (high is not None and number > high):
        raise SparsityError(f"{name} must be a whole number{_bounds(low, None, high)}, got {value!r}")
    return number


def require_one_of(name: str, value: object, choices: Collection[str]) -> None:
    """Raise unless `value` is one of the choices; the error suggests the closest."""
    if not isinstance(value, str) or value not in choices:
        close = get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SparsityError(f"{name} must be one of {', '.join(choices)}, got {value!r:.50}{hint}")


def require_floats(name: str, value: object) -> None:
    """Raise unless `value` is a floating-point tensor; checks only its dtype, never its entries."""
    if not isinstance(value, Tensor):
        raise SparsityError(f"{name} must be a floating-point tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise SparsityError(f"{name} must be a floating-point tensor, got {value.dtype}")


def require_module(name: str, value: Module) -> Module:
    """`value`; raises unless it is a module."""
    if not isinstance(value, nn.Module):
        raise SparsityError(f"{name} must be a torch.nn.Module, got {value!r}")
    return value


def import_extra(module: str, need: str, package: str) -> Any:
    """The optional `module`; if it is missing, the error says what needs it and which package to install."""
    try:
        # a submodule alone would be found even if its package cannot be imported
        import_module(module.partition(".")[0])
        return import_module(module)
    except ImportError:
        raise SparsityError(f"{need}; install it with: pip install {package}") from None


def _bounds(low: float | None, above: float | None, high: float | None) -> str:
    limits = {"of at least": low, "above": above, "of at most": high}
    return " and".join(f" {words} {limit:g}" for words, limit in limits.items() if limit is not None)
