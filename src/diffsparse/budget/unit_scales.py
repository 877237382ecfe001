"""Scales of batch norms that gates have made small become about one again, and the layers behind them make up for it.

Behind a small scale a layer learns slowly: what it reads is small, so are its gradients, and its weights have grown.
As batch norm, activation and layer are in proportion to the scale, the network computes the same with the scale times a
factor and the weights divided by it. Factors are powers of two, which cost no bit.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.compaction.capture import capture
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.graph import Graph, Node, Value
from diffsparse.compaction.rules.base import argument
from diffsparse.compaction.verify import copied, same_draws
from diffsparse.example import Example
from diffsparse.undisturbed import restoring

MOST = 4.0
"""The largest factor: what is almost dead would change with every step if its weights were that much smaller."""
_LAYERS = {"linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))}
_IN_PROPORTION = {
    *("relu", "leaky_relu", "dropout", "dropout1d", "dropout2d", "dropout3d", "interpolate"),
    *(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)),
    *("mean", "sum", "flatten", "view", "reshape", "permute", "transpose", "contiguous", "squeeze", "unsqueeze"),
    *("index_select", "getitem", "chunk", "split", "unbind", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle"),
}
"""Operators of one tensor that give twice as much for twice as much."""
_POWERS = {
    **dict.fromkeys(["momentum_buffer", "exp_avg", "exp_inf", "grad_avg", "prev"], -1),
    **dict.fromkeys(["exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"], -2),
    **dict.fromkeys(["step_size", "ax"], 1),
    "acc_delta": 2,
}
"""How what optimisers keep changes with the scale of a parameter: gradients are divided by what it is multiplied by."""


@torch.no_grad()
def to_unit_scales(model: nn.Module, example: Example, norms: Collection[str]) -> dict[str, float]:
    """Multiply scales and biases of these batch norms of `model`, as far as layers behind them can make up for it.

    Returns:
        What each parameter was multiplied by, by name.
    """
    parameters = dict(model.named_parameters())
    factors: dict[str, float] = {}
    for own, weights in _coupled(model, example, norms):
        if not parameters.keys() >= {*own, *weights}:
            continue
        factor = _factor(parameters[own[0]])
        changes = dict.fromkeys(own, factor) | dict.fromkeys(weights, 1 / factor)
        if factor != 1 and all(_is_exact(parameters[name], by) for name, by in changes.items()):
            factors |= changes
            multiply(model, changes)
    return factors


Coupled = tuple[list[str], list[str]]
"""Scale and bias of a norm, and the weights that make up for them."""


def _coupled(model: nn.Module, example: Example, norms: Collection[str]) -> list[Coupled]:
    """What belongs together in evaluation and in training alike."""
    with restoring(model, hooks=True), same_draws():
        evaluated, _ = _couples(duplicate(model).eval(), example, norms)
        try:
            trained, read = _couples(duplicate(model).train(), example, norms)
        except Exception:  # a user's code may raise anything, and so does batch norm for a single value
            return []
    # training may leave out a norm with all that reads it, but not one of them alone, and nothing else may read it
    found = {name: (each, trained.get(name, ([], []))) for name, each in evaluated.items()}
    return [mine for mine, other in found.values() if mine and other and {*other[1]} == read.intersection(mine[1])]


def _couples(
    model: nn.Module, example: Example, norms: Collection[str]
) -> tuple[dict[str, Coupled | None], set[str | None]]:
    """By norm that runs, or None if something else depends on it, too; and all parameters that are read."""
    graph, _ = capture(model, *copied((example.args, example.kwargs)))
    behind, found = _Behind(graph), dict[str, Coupled | None]()
    for node in graph.nodes:
        if node.op != "batch_norm" or node.call is None or node.call.name not in norms:
            continue
        scale, bias = (argument(node, at, name) for at, name in ((3, "weight"), (4, "bias")))
        weights = behind.weights(node.output)
        own = behind.own([scale, *([] if bias is None else [bias])])
        # whoever made strangers may read anything
        found[node.call.name] = None if graph.strangers or weights is None or own is None else (own, weights)
    return found, {value.parameter for node in graph.nodes for value in node.inputs}


@torch.no_grad()
def multiply(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply parameters, by name."""
    parameters = dict(model.named_parameters()) if factors else {}
    for name, factor in factors.items():
        parameters[name].mul_(factor)


def multiply_states(optimizers: Iterable[Optimizer], model: nn.Module, factors: Mapping[str, float]) -> None:
    """Change what optimisers keep of parameters that were multiplied; what is not known of a state stays."""
    parameters = dict(model.named_parameters()) if factors else {}
    for optimizer in optimizers:
        for name, factor in factors.items():
            state: dict[str, Any] = optimizer.state.get(parameters[name], {})
            for key, kept in state.items():
                # that of RMSprop is divided by the root of a square
                has_no_unit = key == "momentum_buffer" and "square_avg" in state
                if isinstance(kept, Tensor) and kept.shape == parameters[name].shape and not has_no_unit:
                    kept.mul_(factor ** _POWERS.get(key, 0))


class _Behind:
    """What lies behind the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._readers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._readers.setdefault(id(value), []).append(node)
        self._returned = {id(value) for value in graph.results}
        self._reads = Counter(id(value) for node in graph.nodes for value in node.inputs)

    def weights(self, value: Value) -> list[str] | None:
        """Weights that everything made of `value` is in proportion to; None if it is used in another way, too."""
        readers, found = self._readers.get(id(value), []), list[str]()
        if not readers or id(value) in self._returned:
            return None
        for node in readers:
            further: Iterable[list[str] | None]
            if node.op in _LAYERS and node.args[:1] == (value,):
                further = [self.own([argument(node, 1, "weight")])]
            elif node.op in _IN_PROPORTION and len(node.inputs) == 1 and node.outputs:
                further = map(self.weights, node.outputs)
            else:
                return None
            for names in further:
                if names is None:
                    return None
                found += names
        return found

    def own(self, values: Iterable[Any]) -> list[str] | None:
        """Names of these, if they are parameters and are read once."""
        values = list(values)
        alone = all(isinstance(value, Value) and self._reads[id(value)] == 1 and value.parameter for value in values)
        return [value.parameter for value in values] if alone else None


def _factor(scales: Tensor) -> float:
    """One over the mean size, as a power of two; 1 if it is not small, and never more than `MOST`."""
    size = scales.detach().abs().double().mean().item()
    return min(max(2.0 ** -round(math.log2(size)), 1.0), MOST) if 0 < size < math.inf else 1.0


def _is_exact(parameter: Tensor, factor: float) -> bool:
    multiplied = parameter * factor
    return bool(multiplied.isfinite().all()) and torch.equal(multiplied / factor, parameter)
