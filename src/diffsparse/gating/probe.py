"""Which inputs of a layer live and die together: NaN is put into single channels, and seen to arrive."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from diffsparse.gating.flow import Producer
from diffsparse.gating.operations import Parameters, aten

RUNS_PER_PRODUCER = 4


class _Injection(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts NaN into one channel of some producers, and takes it out again where a layer reads it."""

    def __init__(self, model: nn.Module, channel_of: Mapping[Producer, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._parameters, self._channel_of = Parameters(model), channel_of
        self.arrived: dict[str, Tensor] = {}
        """By layer, in which of its inputs NaN was seen."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        layer, producer, axis = self._parameters.weighted(func, args), None, -1
        if layer is not None:
            operand = layer.operand
            found = operand.isnan().movedim(layer.axis, 0).flatten(1).any(1)
            self.arrived[layer.name] = found | self.arrived.get(layer.name, torch.zeros_like(found))
            args = tuple(operand.nan_to_num() if arg is operand else arg for arg in args)
            producer, axis = Producer(layer.name, layer.offset), layer.axis
        elif func is aten.embedding.default and (table := self._parameters.find(args[0])) is not None:
            producer = Producer(table[0], 0, table=True)
        result = func(*args, **kwargs)
        if producer is not None and producer in self._channel_of:
            result = result.clone()
            result.select(axis, self._channel_of[producer]).fill_(float("nan"))
        return result


def arrivals(
    model: nn.Module, run: Callable[[], Any], feeds: Mapping[str, Sequence[Producer]], widths: Mapping[Producer, int]
) -> dict[str, dict[Producer, list[list[int]]]]:
    """For each layer and each producer that it alone reads: the inputs that single channels of the producer reach.

    Args:
        model: the model, in eval mode.
        run: runs it on the example.
        feeds: by the name of its weights, who feeds a layer; no producer feeds two layers.
        widths: how many channels each producer makes.
    """
    draw = random.Random(0)
    seen: dict[str, dict[Producer, list[list[int]]]] = {name: {} for name in feeds}
    for count in range(RUNS_PER_PRODUCER * max(map(len, feeds.values()), default=0)):
        # layers do not see each other's NaN, so that all of them are probed in one run
        turn = {name: producers[count % len(producers)] for name, producers in feeds.items()}
        with _Injection(model, {one: draw.randrange(widths[one]) for one in turn.values()}) as injection:
            run()
        for name, producer in turn.items():
            reached = injection.arrived[name].nonzero().flatten().tolist()
            seen[name].setdefault(producer, []).append(reached)
    return seen


def block_size(channels: int, seen: Mapping[Producer, list[list[int]]]) -> int | None:
    """How many neighbouring inputs form one unit, given which inputs single channels reach; None if there are no units.

    A producer that reaches everything, or inputs far apart, stays whatever dies: keys and values of many query heads.
    """
    runs = {
        one: [inputs for inputs in reached if inputs]
        for one, reached in seen.items()
        if all(len(inputs) < channels and inputs[-1] - inputs[0] == len(inputs) - 1 for inputs in reached if inputs)
    }
    found = [inputs for reached in runs.values() for inputs in reached]
    size = max(map(len, found), default=0)
    aligned = all(inputs[0] // size == inputs[-1] // size for inputs in found)
    return size if size and channels % size == 0 and aligned else None
