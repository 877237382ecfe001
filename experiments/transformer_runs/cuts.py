"""Cuts of a trained transformer to a share of its MACs, by magnitude: the peers of learned gates."""

import copy
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch_pruning as tp
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import diffsparse as ds

LAYERS = {
    "attn.c_proj": ("heads", ("attn.c_attn",)),
    "mlp.c_proj": ("neurons", ("mlp.c_fc",)),
    "attention.output.dense": ("heads", ("attention.self.query", "attention.self.key", "attention.self.value")),
    "output.dense": ("neurons", ("intermediate.dense",)),
    "attention.o_proj": ("heads", ("attention.q_proj", "attention.k_proj", "attention.v_proj")),
    "mlp.fc2": ("neurons", ("mlp.fc1",)),
}
"""Layers that read heads or neurons, by the end of their name, and those that make what they read."""


@dataclass(frozen=True)
class Reader:
    """A layer that reads heads or neurons."""

    name: str
    kind: str
    scores: Tensor
    """Product of the norms of the weights that make and that read each unit."""


def head_size(model: nn.Module) -> int:
    """Channels per head, which no cut changes."""
    config = model.network.config  # type: ignore[union-attr]
    return int(config.hidden_size) // int(config.num_attention_heads)  # type: ignore[union-attr,arg-type]


def readers(model: nn.Module) -> Iterator[Reader]:
    """All of them; layers that lost all their units are constants, or gone."""
    layers = dict(model.named_modules())
    for name, layer in layers.items():
        if not isinstance(layer, nn.Linear | Conv1D):
            continue
        ending = max((end for end in LAYERS if name.endswith(f".{end}")), key=len, default=None)
        if ending is None:
            continue
        kind, makers = LAYERS[ending]
        block, prefix = (head_size(model) if kind == "heads" else 1), name.removesuffix(ending)
        read = _inputs_first(layer).square().sum(1).view(-1, block).sum(1)
        made = torch.zeros_like(read)
        for maker in makers:
            rows = _inputs_first(layers[prefix + maker]).square().sum(0)
            # queries, keys and values may lie side by side in one layer
            made += rows.view(-1, len(read), block).sum((0, 2))
        yield Reader(name, kind, (made * read).sqrt())


def _inputs_first(layer: nn.Module) -> Tensor:
    weight: Tensor = layer.weight.detach()  # type: ignore[assignment,operator]
    return weight.T if isinstance(layer, nn.Linear) else weight


def by_magnitude(model: nn.Module, example: Tensor, share: float) -> nn.Module:
    """The network without the same share of its heads and of its neurons, those of smallest score over all layers."""
    whole = ds.measure(model, example, latency=False).macs
    found = list(readers(model))
    low, high, best = 0.0, 1.0, None
    for _ in range(10):
        middle = (low + high) / 2
        small = _without(model, example, found, middle)
        if ds.measure(small, example, latency=False).macs <= share * whole:
            high, best = middle, small
        else:
            low = middle
    if best is None:
        raise RuntimeError(f"{share:.0%} of the MACs cannot be reached")
    return best


def _without(model: nn.Module, example: Tensor, found: list[Reader], share: float) -> nn.Module:
    cut = copy.deepcopy(model)
    layers = dict(cut.named_modules())
    for kind in ("heads", "neurons"):
        chosen = [reader for reader in found if reader.kind == kind]
        scores = torch.cat([reader.scores for reader in chosen])
        alive = torch.ones(len(scores), dtype=torch.bool)
        alive[scores.argsort()[: round(share * len(scores))]] = False
        for reader, lives in zip(chosen, alive.split([len(reader.scores) for reader in chosen]), strict=True):
            units = lives.repeat_interleave(head_size(model)) if kind == "heads" else lives
            with torch.no_grad():
                _inputs_first(layers[reader.name])[~units] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small: nn.Module = ds.compact(cut.eval(), example).model
    return small


def by_torch_pruning(model: nn.Module, example: Tensor, share: float) -> nn.Module:
    """The cut of Torch-Pruning's MagnitudePruner in one step: heads, neurons, and the width of the network as well."""
    whole = ds.measure(model, example, latency=False).macs
    # with a ratio that removes no head at all the library fails
    low, high, best = 0.05, 0.95, None
    for _ in range(8):
        middle = (low + high) / 2
        small = _pruned(model, example, middle)
        if ds.measure(small, example, latency=False).macs <= share * whole:
            high, best = middle, small
        else:
            low = middle
    if best is None:
        raise RuntimeError(f"Torch-Pruning cannot reach {share:.0%} of the MACs")
    return best


def _pruned(model: nn.Module, example: Tensor, ratio: float) -> nn.Module:
    small = copy.deepcopy(model).eval()
    heads = {
        layer: layer.out_features // head_size(model)
        for name, layer in small.named_modules()
        if re.fullmatch(r".*\.(query|key|value|q_proj|k_proj|v_proj)", name)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner = tp.pruner.MagnitudePruner(
            small, example, importance=tp.importance.MagnitudeImportance(p=2), global_pruning=True,
            pruning_ratio=ratio, head_pruning_ratio=ratio, prune_num_heads=True, prune_head_dims=False,
            ignored_layers=[small.network.classifier], num_heads=heads, in_channel_groups={}, out_channel_groups={},
        )  # fmt: skip
        pruner.step()
    return small
