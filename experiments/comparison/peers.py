"""How each peer prepares a network, presses on it until the cut, and cuts it to a share of its MACs."""

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import diffsparse as ds
from comparison.loop import Training
from diffsparse.budget.cost_model import CostModel
from diffsparse.budget.entries import GateEntries
from diffsparse.budget.free_weights import halve_free_weights
from diffsparse.errors import import_extra
from diffsparse.example import Example
from diffsparse.gates import chosen_gates
from diffsparse.methods.scales import batch_norms

STRENGTH = 4e-4
"""Lambda of l1 on scales and on gates."""
PROXIMAL = 4e-4
GROUP_NORM = 1e-4
"""Regularisation of Torch-Pruning's group-norm pruner, its default."""
ROUNDS = 10
"""Rounds of the cut by rank over cost; costs are counted anew in each."""
STEP = 1 / 400
"""Share of the channels that Torch-Pruning removes at once."""

Cut = Callable[[nn.Module, Tensor, float], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Start:
    """What happens before the cut; methods that share it share one training until then."""

    prepare: Callable[[nn.Module], nn.Module] = lambda model: model
    term: Callable[[nn.Module], Callable[[], Tensor]] | None = None
    """Makes the extra term of the loss."""
    after_backward: Callable[[nn.Module, Tensor], Callable[[], None]] | None = None
    """Makes what changes gradients, from the model and an example."""
    after_step: Callable[[Training], None] | None = None
    """Hooks the optimiser."""
    restart: bool = False
    """Whether the learning rate ends at the cut and starts anew after it."""


def scales_at_half(model: nn.Module) -> nn.Module:
    """Scales of batch norms at 0.5, where slimming starts."""
    for norm in batch_norms(model):
        nn.init.constant_(norm.weight, 0.5)
    return model


def scale_l1(model: nn.Module) -> Callable[[], Tensor]:
    """Slimming's term."""
    scales = [norm.weight for norm in batch_norms(model)]
    return lambda: STRENGTH * torch.cat(scales).abs().sum()


def gate_l1(model: nn.Module) -> Callable[[], Tensor]:
    """The paper's term at a fixed lambda."""
    return ds.Penalty(model, ds.L1(), STRENGTH)


def proximal_l1(training: Training) -> None:
    """A proximal step on the scales after each step of the optimiser."""
    scales = [norm.weight for norm in batch_norms(training.model)]
    ds.ProximalStep(training.optimizer, scales, ds.L1(), PROXIMAL)


def group_norm(model: nn.Module, example: Tensor) -> Callable[[], None]:
    """The sparse learning of Torch-Pruning's GroupNormPruner."""
    pruner = _pruner("GroupNormPruner", _importance("GroupMagnitudeImportance"), model, example, reg=GROUP_NORM)
    return lambda: pruner.regularize(model)


def bn_scale(model: nn.Module, example: Tensor) -> Callable[[], None]:
    """The sparse learning of Torch-Pruning's BNScalePruner."""
    pruner = _pruner("BNScalePruner", _importance("BNScaleImportance"), model, example, reg=STRENGTH)
    return lambda: pruner.regularize(model)


STARTS = {
    "plain": Start(),
    "scales": Start(prepare=scales_at_half, term=scale_l1),
    "scales-restarted": Start(prepare=scales_at_half, term=scale_l1, restart=True),
    "gates-l1": Start(prepare=lambda model: ds.sparsify(model, start=0.5), term=gate_l1),
    "proximal": Start(prepare=scales_at_half, after_step=proximal_l1),
    "tp-group-norm": Start(after_backward=group_norm),
    "tp-bn-scale": Start(prepare=scales_at_half, after_backward=bn_scale),
}


def by_scale(model: nn.Module, example: Tensor, share: float) -> nn.Module:
    """The network without its smallest scales, at most `share` of the MACs; gates count as scales."""
    whole = ds.measure(model, example, latency=False).macs
    model = ds.compact(model.eval(), example).model
    sizes = torch.cat([norm.weight.detach().abs() for norm in batch_norms(model)]).double().numpy()
    return _without(model, example, np.argsort(sizes, kind="stable"), share * whole)


def by_scale_over_cost(model: nn.Module, example: Tensor, share: float) -> nn.Module:
    """The same with scales divided by what a channel of the layer costs, counted anew as the network shrinks."""
    whole = ds.measure(model, example, latency=False).macs
    sizes = torch.cat([norm.weight.detach().abs() for norm in batch_norms(model)]).double().numpy()
    gated = ds.sparsify(copy.deepcopy(model), start=0.5)
    entries = GateEntries(chosen_gates(gated, None))
    costs = CostModel(gated, Example.of(example), entries)
    alive, order = np.ones(len(sizes), bool), list[int]()
    for round_ in range(ROUNDS):
        goal = whole * (1 - (1 - share) * (round_ + 1) / ROUNDS)
        marginal = costs.marginal(alive, 0)
        weight = np.bincount(entries.group, weights=marginal) / entries.sizes
        weight = np.maximum(weight / marginal.mean(), 0.05)[entries.group]
        ranking = np.argsort(np.where(alive, sizes / weight, np.inf), kind="stable")
        for entry in ranking:
            if costs.cost(alive)[0] <= goal or not alive[entry]:
                break
            alive[entry] = False
            order.append(int(entry))
    rest = [int(entry) for entry in ranking if alive[entry]]
    return _without(model, example, np.array(order + rest), share * whole)


def _without(model: nn.Module, example: Tensor, order: Any, macs: float) -> nn.Module:
    """The compact network without the first channels of `order`: as few as keep it within `macs`.

    If the output no longer depends on the input then, the last channel of each batch norm in the order stays.
    """
    sizes = [norm.num_features for norm in batch_norms(model)]
    owner = np.repeat(np.arange(len(sizes)), sizes)[order]
    last = np.zeros(len(order), bool)
    last[[np.flatnonzero(owner == norm)[-1] for norm in range(len(sizes))]] = True
    for candidates in (order, order[~last]):
        low, high, best = 0, len(candidates), None
        while low < high:
            middle = (low + high) // 2
            small = _compact_without(model, example, candidates[:middle], sizes)
            if small.after.macs > macs:
                low = middle + 1
            else:
                high, best = middle, small
        if best is not None and not best.constant_output:
            return best.model.train()
    raise RuntimeError(f"{macs:,.0f} MACs cannot be reached")


def _compact_without(model: nn.Module, example: Tensor, dead: Any, sizes: list[int]) -> Any:
    masked, gone = copy.deepcopy(model), torch.zeros(sum(sizes), dtype=torch.bool)
    gone[torch.as_tensor(dead.copy())] = True
    for norm, part in zip(batch_norms(masked), gone.split(sizes), strict=True):
        norm.weight.data[part] = 0
        norm.bias.data[part] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ds.compact(masked.eval(), example)


def torch_pruning(name: str, importance: str, *, over_layers: bool = True, **options: Any) -> Cut:
    """The cut of one of Torch-Pruning's pruners; each layer loses the same share unless they compete over layers."""

    def cut(model: nn.Module, example: Tensor, share: float) -> nn.Module:
        whole, small = ds.measure(model, example, latency=False).macs, copy.deepcopy(model)
        pruner = _pruner(name, _importance(importance, **options), small, example, global_pruning=over_layers)
        for _ in range(pruner.iterative_steps):
            pruner.step()
            if ds.measure(small, example, latency=False).macs <= share * whole:
                return small.train()
        raise RuntimeError(f"{name} cannot reach {share:.0%} of the MACs")

    return cut


def then_halved(cut: Cut) -> Cut:
    """A cut, after which weights in front of batch norms are halved, as a budget does it in chains."""

    def cut_and_halve(model: nn.Module, example: Tensor, share: float) -> nn.Module:
        small = cut(model, example, share)
        halve_free_weights(small, Example.of(example))
        return small

    return cut_and_halve


def _library() -> Any:
    return import_extra("torch_pruning", "rows of Torch-Pruning need it", "torch-pruning")


def _importance(name: str, **options: Any) -> Any:
    return getattr(_library().importance, name)(**options)


def _pruner(
    name: str, importance: Any, model: nn.Module, example: Tensor, global_pruning: bool = True, **options: Any
) -> Any:
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.enable_grad():
        return getattr(_library().pruner, name)(
            model, example, importance=importance, global_pruning=global_pruning, pruning_ratio=1.0,
            iterative_steps=math.ceil(1 / STEP), ignored_layers=[last], in_channel_groups={}, out_channel_groups={},
            num_heads={}, **options,
        )  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A row of the table."""

    start: str
    cut: Cut


PEERS = {
    "slimming": Peer("scales", by_scale),
    "slimming, restarted": Peer("scales-restarted", by_scale),
    "slimming, ranked by scale / cost": Peer("scales", by_scale_over_cost),
    "gates, l1, fixed lambda, trim": Peer("gates-l1", by_scale),
    "proximal l1": Peer("proximal", by_scale),
    "torch-pruning, magnitude": Peer("plain", torch_pruning("MagnitudePruner", "MagnitudeImportance", p=2)),
    "torch-pruning, magnitude, same share of each layer": Peer(
        "plain", torch_pruning("MagnitudePruner", "MagnitudeImportance", p=2, over_layers=False)
    ),
    "torch-pruning, magnitude, same share of each layer, weights halved": Peer(
        "plain", then_halved(torch_pruning("MagnitudePruner", "MagnitudeImportance", p=2, over_layers=False))
    ),
    "torch-pruning, group norm": Peer("tp-group-norm", torch_pruning("GroupNormPruner", "GroupMagnitudeImportance")),
    "torch-pruning, bn scale": Peer("tp-bn-scale", torch_pruning("BNScalePruner", "BNScaleImportance")),
}
