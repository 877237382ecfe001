"""What the name of a torch call says: which operation it is, whether it writes, whether it only tells a size."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

_RENAMED = {
    **dict.fromkeys(["radd", "iadd"], "add"),
    **dict.fromkeys(["isub", "subtract"], "sub"),
    **dict.fromkeys(["imul", "rmul", "multiply"], "mul"),
    **dict.fromkeys(["truediv", "itruediv", "divide"], "div"),
    **dict.fromkeys(["concat", "concatenate"], "cat"),
    "T.__get__": "transpose_all",
}

# Calls that tell Python of a tensor without its data; whatever else returns no tensor hands data over.
_METADATA = {
    *("size", "dim", "ndimension", "numel", "nelement", "len", "stride", "storage_offset", "element_size"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_tensor", "is_inference", "is_shared"),
    *("type", "data_ptr", "has_names", "untyped_storage", "hash", "repr", "format", "is_same_size", "is_pinned"),
    *("get_device", "result_type"),
}

RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal"}
"""Calls whose result is another one each time."""


def canonical(func: Callable[..., Any]) -> str:
    """One name for `torch.relu`, `F.relu`, `Tensor.relu_` and friends."""
    name: str = getattr(func, "__name__", "unknown")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "unknown") + ".__get__"
        return _RENAMED.get(name, name)
    name = name.strip("_")
    return _RENAMED.get(name, name)


@lru_cache(maxsize=1024)
def spelling(func: Callable[..., Any]) -> tuple[str, bool, bool]:
    """The canonical name, whether it says that the first operand is written to, and whether it may only tell a size."""
    name: str = getattr(func, "__name__", "")
    augmented = name.startswith("__i") and name.endswith("__") and name not in {"__invert__", "__index__", "__int__"}
    single = name.endswith("_") and not name.endswith("__")
    op = canonical(func)
    return op, single or augmented or name == "__setitem__", op in _METADATA or op.endswith(".__get__")


def is_in_place(op: str, spelled: bool, kwargs: dict[str, Any]) -> bool:
    """Whether a call of `op` writes to a tensor that it was given; `spelled` if its name says so."""
    if not kwargs:
        return spelled
    if "dropout" in op and kwargs.get("training") is False:
        return False
    return spelled or kwargs.get("inplace") is True or "out" in kwargs
