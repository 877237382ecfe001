"""An oracle for live channels that shares nothing with the analysis: it looks at activations and gradients.

Every product of a forward pass is watched: convolutions, linear layers, matrix products, attention and recurrent
layers, by whatever name they are called and however often. A term of a product is dead if it is the same for every
input, or if no output changes with it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from diffsparse.example import tensors_in
from tests.compaction.products import NAMES, Marks, Product, find

ROUNDING = 1e-11
"""Numbers that differ by less than this, relative to the largest of their tensor, are the same."""


class Watched:
    """One tensor of one call: which of its entries differ between inputs, and which the outputs depend on."""

    def __init__(self, tensor: Tensor, made_from_sizes: bool) -> None:
        self._first, self._made_from_sizes = tensor.detach().clone(), made_from_sizes
        self._moves = torch.zeros(tensor.shape, dtype=torch.bool)
        self.reached = torch.zeros(tensor.shape, dtype=torch.bool)

    def look(self, tensor: Tensor) -> None:
        """Compare with what was there for the first input, and wait for the gradient."""
        self._moves |= ~_same(tensor.detach(), self._first)
        if tensor.requires_grad:
            tensor.register_hook(self._note)

    @property
    def is_table(self) -> bool:
        """Whether it follows from the size of the input, as a table of positions does, and from nothing else."""
        return self._made_from_sizes and not bool(self._moves.any())

    @property
    def varies(self) -> Tensor:
        """What is not the same for every input of every size."""
        return self._moves | self._made_from_sizes

    def _note(self, grad: Tensor) -> None:
        self.reached |= grad != 0


@dataclass
class Call:
    """One product: its factors and its result over all inputs."""

    product: Product
    tensors: list[Watched]
    module: str
    """The innermost module that made it."""
    stored: tuple[int, ...]
    """The memory of parameters and buffers that it takes."""

    @property
    def marks(self) -> list[Marks]:
        """Of its factors and its result."""
        *factors, result = [(watched.varies, watched.reached) for watched in self.tensors]
        if any(watched.is_table for watched in self.tensors):
            # what is made of such a table is another one at another size
            result = torch.ones_like(result[0]), result[1]
        return [*factors, result]

    def live(self) -> int:
        """Multiply-accumulates that matter."""
        return self.product.live(*self.marks)


class Watch(TorchFunctionMode):
    """Watches the products of forward passes that all make the same calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {module: name for name, module in model.named_modules()}
        self._stored = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        self._running = [""]
        self.calls: list[Call] = []
        self.noting = False
        self._seen: list[Tensor] = []
        self._constant: list[Tensor] = []
        self._products = self._switches = 0

    def restart(self) -> None:
        """Begin the next forward pass."""
        self._products = self._switches = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name.rstrip("_") in _SMOOTH:
            return self._switch(_SMOOTH[name.rstrip("_")], func, args, kwargs)
        if name == "scaled_dot_product_attention":
            with self:
                return _attention(*args, **kwargs)
        if not self.noting or name not in NAMES:
            return func(*args, **kwargs)
        factors, make = find(name, args, kwargs)
        # under a name of its own, the gradient of a factor is that of this call
        names = {id(t): t.view_as(t) if t.requires_grad else t.detach().clone().requires_grad_() for t in factors}
        result = func(*_renamed(args, names), **_renamed(kwargs, names))
        tensors = [*(names[id(t)] for t in factors), result[0] if isinstance(result, tuple) else result]
        # a table of positions, say: the same for every input, but not for every size of it
        sized = [not t.requires_grad and t.untyped_storage()._cdata not in self._stored for t in factors]
        held = tuple(key for t in tensors_in((args, kwargs)) if (key := t.untyped_storage()._cdata) in self._stored)
        self._note(make, tensors, [*sized, False], held)
        return result

    def enter(self, module: nn.Module, _: Any) -> None:
        """A module starts to run."""
        self._running.append(self._names.get(module, self._running[-1]))

    def leave(self, *_: Any) -> None:
        """It ends."""
        self._running.pop()

    def _note(
        self, make: Callable[..., Product], tensors: list[Tensor], sized: list[bool], stored: tuple[int, ...]
    ) -> None:
        if self._products == len(self.calls):
            watched = [Watched(tensor, by_size) for tensor, by_size in zip(tensors, sized, strict=True)]
            self.calls.append(Call(make(*tensors), watched, self._running[-1], stored))
        for one, tensor in zip(self.calls[self._products].tensors, tensors, strict=True):
            one.look(tensor)
        self._products += 1

    def _switch(self, smooth: Callable[[Tensor], Tensor], func: Any, args: Any, kwargs: Any) -> Any:
        """What the data at hand switches off is not dead; what is switched off for every input is."""
        x = args[0]
        index, self._switches = self._switches, self._switches + 1
        if index == len(self._seen):
            self._seen.append(x.detach().clone())
            self._constant.append(torch.ones(x.shape, dtype=torch.bool))
        self._constant[index] &= _same(x.detach(), self._seen[index])
        given = torch.where(self._constant[index], func(x.clone(), *args[1:], **kwargs), smooth(x.clone()))
        return x.copy_(given) if func.__name__.endswith("_") else given


def _same(tensor: Tensor, first: Tensor) -> Tensor:
    return (tensor - first).abs() <= ROUNDING * float(first.abs().max()) if first.numel() else tensor == first


def _leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.5)


# what stands in for a function that switches off: the same at zero, with a slope everywhere
_SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(["relu", "relu6", "hardtanh", "hardswish"], _leaky),
    "hardsigmoid": torch.sigmoid,
}


def _renamed(thing: Any, names: dict[int, Tensor]) -> Any:
    if isinstance(thing, list | tuple):
        return type(thing)(_renamed(part, names) for part in thing)
    if isinstance(thing, dict):
        return {key: _renamed(part, names) for key, part in thing.items()}
    return names.get(id(thing), thing)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The formula of attention, in products that can be watched."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


@contextmanager
def _open_functions() -> Iterator[None]:
    """Let a mode see what torch's functions that are written in Python call, instead of the functions themselves."""
    places = [(module, name) for module in (F, torch.functional) for name in dir(module) if _asks(name)]
    before = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, lambda *_: False)
    try:
        yield
    finally:
        for (module, name), was in zip(places, before, strict=True):
            setattr(module, name, was)


def _asks(name: str) -> bool:
    return name.startswith("has_torch_function")


@dataclass(frozen=True)
class Live:
    """Multiply-accumulates of one forward pass."""

    live: int
    least: int
    """As `live`, with blocks of one size in a product, and one width of a layer for all of its calls."""
    whole: int
    by_module: Counter[str]
    """The live ones by the innermost module that does them."""


def live_macs(model: nn.Module, draw: Callable[[int], Any], draws: int = 3) -> Live:
    """Count what is live in `model`, which must be in eval mode and have no gates.

    Args:
        model: an ordinary model.
        draw: arguments of the model from a seed, a tuple or a dictionary, always of the same shapes.
        draws: how many to look at.
    """
    watch = Watch(model)
    with _open_functions(), register_module_forward_pre_hook(watch.enter), register_module_forward_hook(watch.leave):
        for seed in range(draws):
            # shows what is switched off for every input
            _outputs(model, watch, draw(seed))
        watch.noting = True
        for seed in range(draws):
            outputs = [tensor for tensor in _outputs(model, watch, draw(seed)) if tensor.requires_grad]
            generator = torch.Generator().manual_seed(seed)
            parts = [(tensor * torch.randn(tensor.shape, generator=generator)).sum() for tensor in outputs]
            torch.stack(parts).sum().backward()
    model.zero_grad()
    by_module = Counter[str]()
    for call in watch.calls:
        by_module[call.module] += call.live()
    return Live(by_module.total(), _least(watch.calls), sum(call.product.whole for call in watch.calls), by_module)


def _least(calls: list[Call]) -> int:
    together: dict[Any, list[Call]] = {}
    for number, call in enumerate(calls):
        together.setdefault(call.stored or number, []).append(call)
    return sum(call.product.least([call.marks, *_others(call, same)]) for same in together.values() for call in same)


def _others(call: Call, same: list[Call]) -> list[list[Marks]]:
    """The marks of other calls of the same form."""
    return [other.marks for other in same if other is not call and type(other.product) is type(call.product)]


def _outputs(model: nn.Module, watch: Watch, given: Any) -> list[Tensor]:
    watch.restart()
    with watch:
        return list(tensors_in(model(**given) if isinstance(given, dict) else model(*given)))
