"""Run a model without leaving a trace in it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.module_tree import HOOKS, OF_TORCH, modules_by_name
from diffsparse.references import ATOMS, CODE, parts

_HOOKS_OF = itemgetter(*HOOKS)
_REACH, _MANY = 4, 1000
"""How far from a module, and into how long collections, to look for what hooks and functions may write to."""


class State:
    """What running models may change: training flags, buffers, attributes, the collections among them, new hooks.

    Args:
        models: whose state it is.
        hooks: whether to look at what their hooks hold, too; not for hooks that are there to note something.
        own_code: whether to look only at modules with the user's own code: in eval mode, torch's own change nothing.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> layer.seen = []
        >>> state = State(layer)
        >>> layer.seen.append(1)
        >>> layer.width = 2
        >>> state.restore()
        >>> layer.seen, hasattr(layer, "width")
        ([], False)
    """

    def __init__(self, *models: nn.Module, hooks: bool = False, own_code: bool = False) -> None:
        modules = [module for model in models for module in modules_by_name(model).values()]
        # some libraries put hooks into a model when it first runs, and note in an attribute that they did
        self._hooks = [
            (each, tuple(each)) for module in modules for each in (module._forward_hooks, module._forward_pre_hooks)
        ]
        if own_code:
            modules = [module for module in modules if not type(module).__module__.startswith("torch.nn.modules.")]
        self._modules = [(module, type(module), dict(vars(module))) for module in modules]
        self._buffers = [
            (module, name, buffer, _numbers(buffer))
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._contents: dict[int, tuple[Any, Any]] = {}
        for _, _, held in self._modules:
            self._note(
                [value for key, value in held.items() if type(value) not in ATOMS and key not in OF_TORCH], _REACH
            )
            if hooks and any(several := _HOOKS_OF(held)):
                self._note([hook for each in several if isinstance(each, dict) for hook in each.values()], _REACH)

    def _note(self, things: Iterable[Any], reach: int) -> None:
        for thing in things:
            kind = type(thing)
            if kind in ATOMS or (kind is tuple and ATOMS.issuperset(map(type, thing))):
                continue
            if id(thing) in self._contents or issubclass(kind, nn.Module | Tensor | type):
                continue
            if not issubclass(kind, CODE):
                self._contents[id(thing)] = thing, _content(thing)
            inside = parts(thing)
            if reach > 1 and len(list(inside)) <= _MANY:
                self._note(inside, reach - 1)

    def restore(self) -> None:
        """Put everything back as it was."""
        for module, kind, saved in self._modules:
            # a lazy module that has become another one stays that
            if not _same(vars(module), saved) and type(module) is kind:
                _put_back(vars(module), saved, lambda key: key not in OF_TORCH or key == "training")
        for added, keys in self._hooks:
            for key in [key for key in added if key not in keys] if len(added) > len(keys) else ():
                del added[key]
        for module, name, buffer, numbers in self._buffers:
            if numbers is not None and buffer._version != numbers[0]:
                with torch.no_grad():
                    buffer.copy_(numbers[1])
            if module._buffers.get(name) is not buffer:
                module._buffers[name] = buffer
        for thing, content in self._contents.values():
            _refill(thing, content)


def _numbers(buffer: Tensor) -> tuple[int, Tensor] | None:
    """Version and copy of a buffer; None for one made in inference mode, which nobody can write to outside of it."""
    return None if buffer.is_inference() else (buffer._version, buffer.detach().clone())


def _content(thing: Any) -> Any:
    """A shallow copy of what a collection or an object holds; None for anything else."""
    if isinstance(thing, dict | list | set | deque):
        return thing.copy()
    return dict(vars(thing)) if hasattr(thing, "__dict__") else None


def _refill(thing: Any, saved: Any) -> None:
    if saved is None:
        return
    if not isinstance(thing, dict | list | set | deque):
        _put_back(vars(thing), saved)
    elif isinstance(thing, dict):
        _put_back(thing, saved)
    elif len(thing) != len(saved) or not all(map(is_, thing, saved)):
        thing.clear()
        (thing.update if isinstance(thing, set) else thing.extend)(saved)


def _same(held: dict[Any, Any], saved: dict[Any, Any]) -> bool:
    """Whether a dictionary still has the same entries."""
    return len(held) == len(saved) and all(map(is_, held.values(), saved.values()))


def _put_back(held: dict[Any, Any], saved: dict[Any, Any], counts: Callable[[Any], bool] = lambda key: True) -> None:
    """Give a dictionary the entries that it had; only those whose keys count."""
    for key in [key for key in held if counts(key) and key not in saved]:
        del held[key]
    held.update({key: value for key, value in saved.items() if counts(key) and held.get(key, held) is not value})


@contextmanager
def restoring(*models: nn.Module, hooks: bool = False) -> Iterator[None]:
    """Afterwards the models, and with `hooks` what their hooks hold, are what they were."""
    state = State(*models, hooks=hooks)
    try:
        yield
    finally:
        state.restore()


@contextmanager
def undisturbed(*models: nn.Module, device: torch.device, hooks: bool = False) -> Iterator[None]:
    """Eval mode without gradients; afterwards the models and the random state are what they were.

    With `hooks`, so is what hooks hold.

    Example:
        >>> model = nn.Dropout()
        >>> with undisturbed(model, device=torch.device("cpu")):
        ...     model.training, torch.is_grad_enabled()
        (False, False)
        >>> model.training, torch.is_grad_enabled()
        (True, True)
    """
    # Not inference mode: a tensor that the model caches in it could not be trained with later.
    draws = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with draws, torch.no_grad(), restoring(*models, hooks=hooks):
        for model in models:
            if any(module.training for module in modules_by_name(model).values()):
                model.eval()
        yield
