"""What the name of a torch function says: which operator it is, and whether it writes or only tells sizes."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from diffsparse.compaction.rules import canonical

# Calls that return metadata. Any other call that returns no tensor returns data.
_METADATA = {
    *("size", "dim", "ndimension", "numel", "nelement", "len", "stride", "storage_offset", "element_size"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_tensor", "is_inference", "is_shared"),
    *("type", "data_ptr", "has_names", "untyped_storage", "hash", "repr", "format", "is_same_size", "is_pinned"),
    *("get_device", "result_type"),
}


@lru_cache(maxsize=1024)
def spelling(func: Callable[..., Any]) -> tuple[str, bool, bool]:
    """The canonical name, whether it says that the first operand is written to, and whether it may be metadata."""
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
    return spelled or kwargs.get("inplace") is True or kwargs.get("out") is not None
