"""Torch-Pruning, an outside peer: plain training, its own cut by magnitude, training again."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.materialise import check_model
from diffsparse.errors import SparsityError, import_extra
from diffsparse.gating import Count
from diffsparse.measuring import measure
from diffsparse.methods.costs import CostLimits, asked_costs
from diffsparse.methods.method import COSTS, Cut, Method, Sample, check_targets, register_method
from diffsparse.methods.scales import channels
from diffsparse.module_tree import copy_training_flags
from diffsparse.undisturbed import undisturbed

STEP = 1 / 400
"""Share of the channels that are removed at once, before magnitudes are ranked again."""
SLACK = 0.01
"""How far below `target` the share of removed channels may end."""


@dataclass(frozen=True, kw_only=True)
class TorchPruning(Method):
    """Torch-Pruning's MagnitudePruner: l2 norms of coupled channels, ranked over the whole network.

    It prunes in many small steps: in one step it would leave a layer whole if all its channels rank low. It never
    removes the last channel of a layer, nor outputs of the last layer. Needs the `bench` extra.
    """

    target: float | None = None
    """Share of channels to remove, coupled ones counted once, as the library counts."""
    macs: float | None = None
    """Or what the network may cost: it stops after the first step within that; shares of the whole network up to 1,
    numbers above."""
    params: float | None = None
    bytes: float | None = None

    cuts = True
    options = COSTS | {"target", "retrain_epochs"}

    def __post_init__(self) -> None:
        check_targets("torch-pruning", self.target, asked_costs(self))

    def prepare(self, model: nn.Module, sample: Sample | None = None) -> nn.Module:
        """The model as it is; raises before any training if the library is missing."""
        _library()
        return model

    def cut(self, model: nn.Module, example: Tensor) -> Cut:
        """The network as the library cuts it; there is no plan, so it cannot be loaded into a fresh instance.

        Raises SparsityError if the library fails, falls short of the target, or leaves a network that does not run.
        """
        model = check_model(model)
        name, small = type(model).__name__, duplicate(model)
        with torch.enable_grad(), _explained(f"failed on {name}"):
            self._prune(_pruner(small, example, 1.0 if self.target is None else self.target), model, example)
        with undisturbed(model, small, device=example.device):
            expected = model(example).shape
            with _explained(f"left a {name} that does not run"):
                got = small(example).shape
        if got != expected:
            raise SparsityError(f"torch-pruning changed the output of {name} from shape {(*expected,)} to {(*got,)}")
        copy_training_flags(model, small)
        before, after = channels(model), channels(small)
        return Cut(model=small, compacted=None, removed=Count(zero=before - after, total=before))

    def _prune(self, pruner: Any, model: nn.Module, example: Tensor) -> None:
        name, before = type(model).__name__, _width(pruner)
        now = measure(model, example, latency=False)
        limits = CostLimits(asked_costs(self), now) if self.target is None else None
        if limits is not None and limits.excess(now) <= 1:
            return
        for _ in range(pruner.iterative_steps):
            if [group.prune() for group in pruner.step(interactive=True)] and limits is not None:
                now = measure(pruner.model, example, latency=False)
                if limits.excess(now) <= 1:
                    return
        reason = "it keeps a channel of every layer"
        if limits is not None:
            reached = f"stopped at {limits.shares(now)} of {name}"
            raise SparsityError(f"torch-pruning {reached}, short of {limits.words()}: {reason}")
        assert self.target is not None
        removed = 1 - _width(pruner) / before
        if removed < self.target - max(SLACK, 2 / before):
            reached = f"removed {removed:.1%} of the channels of {name}"
            raise SparsityError(f"torch-pruning {reached}, short of target={self.target:g}: {reason}")


def _library() -> Any:
    return import_extra("torch_pruning", "--method torch-pruning needs Torch-Pruning", "torch-pruning")


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Any error of the library, which may raise anything, becomes one of ours."""
    try:
        yield
    except SparsityError:
        raise
    except Exception as error:
        raise SparsityError(f"torch-pruning {problem}: {type(error).__name__}: {error}") from error


def _pruner(model: nn.Module, example: Tensor, ratio: float) -> Any:
    library = _library()
    return library.pruner.MagnitudePruner(
        model,
        example,
        importance=library.importance.MagnitudeImportance(p=2),
        global_pruning=True,
        pruning_ratio=ratio,
        iterative_steps=math.ceil(ratio / STEP),
        ignored_layers=[_last_layer(model, example)],
        # the library's defaults are dictionaries that all its pruners share
        in_channel_groups={},
        out_channel_groups={},
        num_heads={},
    )


def _last_layer(model: nn.Module, example: Tensor) -> nn.Module:
    """The layer with weights that is called last, the classifier."""
    called: list[nn.Module] = []
    layers = [module for module in model.modules() if isinstance(module, _ConvNd | nn.Linear)]
    handles = [layer.register_forward_hook(lambda layer, _args, _output: called.append(layer)) for layer in layers]
    try:
        with undisturbed(model, device=example.device):
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise SparsityError(f"{type(model).__name__} has no convolution and no linear layer to prune")
    return called[-1]


def _width(pruner: Any) -> int:
    """Channels that the library could remove, coupled ones counted once."""
    groups = pruner.DG.get_all_groups(pruner.ignored_layers, pruner.root_module_types)
    return sum(len(group[0].idxs) for group in groups)


register_method("torch-pruning", TorchPruning)
