"""The example input of a model, and the tensors nested in inputs and outputs."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError

# Checked first: most things are one of these, and checks for tensors are slow.
_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True, kw_only=True)
class Example:
    """Arguments for one call of a model.

    Example:
        >>> str(Example.of({"x": torch.zeros(2), "deep": True}))
        'x=float32[2], deep=True'
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, example_inputs: Any) -> "Example":
        """Arguments from a tensor, a tuple or a mapping; tensors are copied, so the model may overwrite them."""
        if isinstance(example_inputs, Tensor):
            example_inputs = (example_inputs,)
        if isinstance(example_inputs, Mapping):
            args, kwargs = (), dict(example_inputs)
        elif isinstance(example_inputs, tuple):
            args, kwargs = example_inputs, {}
        else:
            found = type(example_inputs).__name__
            raise SparsityError(f"example_inputs must be a tensor, a tuple or a dict of arguments, got {found}")
        if not all(isinstance(key, str) for key in kwargs):
            raise SparsityError(f"keyword arguments have strings for names; got {list(kwargs)}")
        example = cls(args=map_tensors(_copy, args), kwargs=map_tensors(_copy, kwargs))
        if not example.tensors:
            raise SparsityError(f"example_inputs has no tensor: ({example})")
        if any(tensor.numel() == 0 for tensor in example.tensors):
            raise SparsityError(f"example_inputs has an empty tensor: {example}")
        return example

    @property
    def inputs(self) -> Any:
        """The arguments in the form that `of` takes."""
        return self.kwargs if self.kwargs else self.args

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, nested ones too."""
        return list(tensors_in((self.args, self.kwargs)))

    @property
    def device(self) -> torch.device:
        """The device of the first tensor."""
        return self.tensors[0].device

    def beside(self, model: nn.Module) -> "Example":
        """The example on a device of `model`: where it is, if `model` has parameters there, or with the first of them.

        Example:
            >>> Example.of(torch.zeros(2)).beside(nn.Linear(2, 2, device="meta")).device
            device(type='meta')
        """
        devices = [parameter.device for parameter in model.parameters()]
        if not devices or self.device in devices:
            return self
        return Example(
            **{key: map_tensors(lambda tensor: tensor.to(devices[0]), part) for key, part in vars(self).items()}
        )

    @property
    def samples(self) -> int:
        """The size that every tensor has in dimension 0, usually the batch; 1 if the sizes differ."""
        sizes = {tensor.shape[0] if tensor.dim() > 0 else 1 for tensor in self.tensors}
        return sizes.pop() if len(sizes) == 1 else 1

    def first_sample(self) -> "Example":
        """The example with the first entry of each tensor only."""
        first = {key: map_tensors(lambda tensor: tensor[:1], value) for key, value in vars(self).items()}
        return Example(**first)

    def run(self, model: nn.Module) -> Any:
        """Call `model`; if it raises, the error names the shapes and keeps the cause."""
        try:
            return model(*self.args, **self.kwargs)
        except Exception as error:
            words = f"{type(model).__name__} does not run on the example ({self}): {error}{self._hint(error)}"
            raise SparsityError(words) from error

    def _hint(self, error: Exception) -> str:
        """What to look at where an index is out of range."""
        whole = [t for t in self.tensors if not t.is_floating_point() and t.dtype != torch.bool and not t.is_complex()]
        if not whole or not isinstance(error, IndexError):
            return ""
        largest = max(int(tensor.max()) for tensor in whole)
        return f"; its whole numbers go up to {largest}: perhaps beyond a vocabulary, or too long for the model"

    def __str__(self) -> str:
        named = (f"{key}={_describe(value)}" for key, value in self.kwargs.items())
        return ", ".join([*map(_describe, self.args), *named])


def is_mask(tensor: Tensor) -> bool:
    """Whether it says of each entry of sequences whether it counts: whole numbers of which none is but 0 and 1."""
    return tensor.dim() == 2 and not tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all())


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """Every tensor inside nested collections, dataclasses and plain objects."""
    if isinstance(thing, _PLAIN):
        return
    if isinstance(thing, Tensor):
        yield thing
        return
    items: Iterable[Any] = ()
    if isinstance(thing, dict):
        items = thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        items = thing
    elif is_dataclass(thing) and not isinstance(thing, type):
        items = (getattr(thing, entry.name) for entry in fields(thing))
    elif hasattr(thing, "__dict__") and not callable(thing):
        items = vars(thing).values()
    for item in items:
        yield from tensors_in(item)


def map_tensors(change: Callable[[Tensor], Tensor], thing: Any) -> Any:
    """`thing` with each tensor in nested tuples, lists and dictionaries changed; collections keep their types.

    Example:
        >>> map_tensors(torch.numel, {"x": [torch.zeros(3), "a"]})
        {'x': [3, 'a']}
    """
    if isinstance(thing, Tensor):
        return change(thing)
    if isinstance(thing, dict):
        changed = copy.copy(thing)
        changed.update((key, map_tensors(change, item)) for key, item in thing.items())
        return changed
    if isinstance(thing, tuple | list):
        items = [map_tensors(change, item) for item in thing]
        return type(thing)(*items) if hasattr(thing, "_fields") else type(thing)(items)
    return thing


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_describe, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_describe(item)}' for key, item in value.items())}}}"
    return repr(value) if isinstance(value, bool | int | float | str | None) else type(value).__name__
