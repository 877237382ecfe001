"""Torch-Pruning, an outside peer: plain training, its own cut by magnitude, training again."""

import copy
import importlib
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from diffsparse.compaction.materialise import check_model
from diffsparse.errors import SparsityError
from diffsparse.gating import Count
from diffsparse.measuring import measure
from diffsparse.methods.method import Cut, Method, register_method
from diffsparse.methods.scales import channels, check_targets
from diffsparse.methods.settings import Sparsifying
from diffsparse.module_tree import copy_training_flags, undisturbed

STEP = 1 / 400
"""Share of the channels that go at once, before magnitudes are ranked again."""
SLACK = 0.01
"""How far below `target` the share of removed channels may end."""


@dataclass(frozen=True, kw_only=True)
class TorchPruning(Method):
    """Torch-Pruning's MagnitudePruner: l2 norms of coupled channels, ranked over the whole network.

    It goes in many small steps rather than in one, because in one step it leaves a layer whole all of whose channels
    rank low; it never removes the last channel of a layer. The outputs of the last layer stay. Needs the `bench` extra.
    """

    target: float | None = None
    """Share of channels to remove, coupled ones counted once, as the library counts."""
    target_macs: float | None = None
    """Or the share of MACs to keep: it stops at the first step that keeps no more, `STEP` of the channels being one."""

    cuts = True
    options = frozenset({"target", "target_macs", "retrain_epochs"})

    def __post_init__(self) -> None:
        check_targets("torch-pruning", self.target, self.target_macs)

    @classmethod
    def check(cls, settings: Sparsifying) -> None:
        super().check(settings)
        check_targets(settings.method, settings.target, settings.target_macs)

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> Method:
        return cls(target=settings.target, target_macs=settings.target_macs)

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model as it is; raises before any training if the library is missing."""
        _library()
        return model

    def cut(self, model: nn.Module, example: Tensor) -> Cut:
        """The network as the library cuts it; there is no plan, so it cannot be loaded into a fresh instance.

        Raises:
            SparsityError: the library failed, fell short of what was asked for, or left a network that does not run.
        """
        library = _library()
        model = check_model(model)
        small = copy.deepcopy(model)
        try:
            with torch.enable_grad():
                pruner = _pruner(library, small, example, 1.0 if self.target is None else self.target)
                self._prune(pruner, model, example)
        except SparsityError:
            raise
        except Exception as error:
            # a library's inside may raise anything
            raise SparsityError(
                f"torch-pruning failed on {type(model).__name__}: {type(error).__name__}: {error}"
            ) from error
        _check_runs(model, small, example)
        copy_training_flags(model, small)
        before, after = channels(model), channels(small)
        return Cut(model=small, compacted=None, removed=Count(zero=before - after, total=before))

    def _prune(self, pruner: Any, model: nn.Module, example: Tensor) -> None:
        whole, before = measure(model, example, latency=False).macs, _width(pruner)
        for _ in range(pruner.iterative_steps):
            went = [group.prune() for group in pruner.step(interactive=True)]
            if went and self.target_macs is not None and _macs(pruner.model, example) <= self.target_macs * whole:
                return
        if self.target_macs is not None:
            raise SparsityError(
                f"torch-pruning stopped at {_macs(pruner.model, example) / whole:.1%} of the MACs of "
                f"{type(model).__name__}, short of target_macs={self.target_macs:g}: it keeps a channel of every layer"
            )
        assert self.target is not None
        removed = 1 - _width(pruner) / before
        if removed < self.target - max(SLACK, 2 / before):
            raise SparsityError(
                f"torch-pruning removed {removed:.1%} of the channels of {type(model).__name__}, short of "
                f"target={self.target:g}: it keeps a channel of every layer"
            )


def _library() -> ModuleType:
    try:
        return importlib.import_module("torch_pruning")
    except ImportError:
        raise SparsityError(
            "method torch-pruning needs the library; install it with: pip install 'diffsparse[bench]'"
        ) from None


def _pruner(library: ModuleType, model: nn.Module, example: Tensor, ratio: float) -> Any:
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


def _macs(model: nn.Module, example: Tensor) -> int:
    return measure(model, example, latency=False).macs


def _check_runs(model: nn.Module, small: nn.Module, example: Tensor) -> None:
    with undisturbed(model, small, device=example.device):
        expected = model(example).shape
        try:
            got = small(example).shape
        except Exception as error:
            raise SparsityError(
                f"torch-pruning left a {type(model).__name__} that does not run: {type(error).__name__}: {error}"
            ) from error
    if got != expected:
        raise SparsityError(
            f"torch-pruning changed the output of {type(model).__name__} from shape {tuple(expected)} to {tuple(got)}"
        )


register_method("torch-pruning", TorchPruning)
