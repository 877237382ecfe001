"""From an analysis to a plan, and the numbers that go with it."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from diffsparse.compaction.actions import Action, EmitConstant, EmitMap, PassThrough, RaggedSlice, Remove, Slice
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.fold import fold_batch_norms
from diffsparse.compaction.graph import Call, Graph, Mask, Node, every, how_many, some
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.plan_tensors import PlanTensors
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.layers import fold_into_bias
from diffsparse.compaction.rules.pointwise import Pointwise
from diffsparse.compaction.tensor_slice import TensorSlice
from diffsparse.nn.weighted_sum import WeightedSum


def make_plan(analysis: Analysis, fold: bool = False) -> tuple[Plan, PlanTensors]:
    """The plan of an analysis, with batch norms folded into the layers in front of them if `fold`."""
    tensors: dict[str, TensorSlice] = {}
    layers: dict[str, Action] = {name: _leaving_action(call) for name, call in analysis.removed.items()}
    numbers = PlanTensors()
    for name, call in analysis.emitted.items():
        out, start, data = call.output, call.input, call.data
        assert out is not None
        assert out.axis is not None
        assert start is not None
        assert data is not None
        kept = data.index_select(out.axis, torch.from_numpy(np.flatnonzero(out.keep)).to(data.device))
        size = [None if dim == start.axis else n for dim, n in enumerate(start.shape)][1:]
        layers[name] = EmitMap(outputs=_pair(out.keep), shape=list(kept.shape[1:]), input_size=size)
        numbers.constant[name] = kept
    for node, layer in analysis.layers:
        if not layer.free:
            _add_slices(tensors, layer, analysis.graph)
            owner = layer.tensors.get("weight", "").rpartition(".")[0]
            if owner and not (layer.rows.all() and layer.columns.all()):
                inputs = _pair(layer.columns) if layer.mixes else None
                layers[owner] = Slice(inputs=inputs, outputs=_pair(layer.rows))
        elif some(layer.rows):
            _plan_layer(node, layer, analysis.graph, tensors, layers, numbers)
        else:
            _plan_constant(node, layer, layers, numbers)
    for node in analysis.nodes:
        if isinstance(node.rule, Pointwise):
            for name, dims in node.rule.slices(node).items():
                if not all(mask.all() for mask in dims.values()):
                    cut = {dim: _indices(mask) for dim, mask in dims.items()}
                    tensors[name] = TensorSlice(dims=cut, shape=list(analysis.graph.tensors[name].shape))
    for name, module in analysis.modules.items():
        if isinstance(module, WeightedSum):
            _drop_components(name, module, tensors, layers)
    gone = {name for name, action in layers.items() if action.drops_module}
    if gone:
        layers = {name: layer for name, layer in layers.items() if not _inside(name, gone)}
        tensors = {name: kept for name, kept in tensors.items() if not _inside(name, gone)}
    numbers.forget_all_but({name for name, action in layers.items() if not isinstance(action, Remove | PassThrough)})
    plan = Plan(tensors=tensors, layers=layers, kept=_kept(analysis))
    if fold:
        plan, numbers.affine = fold_batch_norms(analysis, plan)
    return plan, numbers


def _leaving_action(call: Call) -> Action:
    """A module leaves a `Sequential` that runs it; anyone else may count or index what it holds."""
    around = call.parent
    plain = around is not None and type(around.module).forward is nn.Sequential.forward
    held = plain and around is not None and len(around.module._modules) > 1
    return Remove() if held and around is not None and call.name.rpartition(".")[0] == around.name else PassThrough()


def _drop_components(name: str, total: WeightedSum, tensors: dict[str, TensorSlice], layers: dict[str, Action]) -> None:
    alive = [i for i, weight in enumerate(total.weights.tolist()) if weight != 0] or [0]
    if len(alive) == len(total.components):
        return
    prefix = f"{name}." if name else ""
    tensors[f"{prefix}weights"] = TensorSlice(dims={0: alive}, shape=list(total.weights.shape))
    for i, key in enumerate(total.components._modules):
        if i not in alive:
            layers[f"{prefix}components.{key}"] = Remove()


def _inside(name: str, gone: set[str]) -> bool:
    """Whether `name` lies in a module that leaves the tree."""
    parts = name.split(".")
    return any(".".join(parts[:depth]) in gone for depth in range(1, len(parts)))


def _pair(mask: Mask) -> tuple[int, int]:
    return len(mask), how_many(mask)


def _indices(mask: Mask) -> list[int]:
    found: list[int] = mask.nonzero()[0].tolist()
    return found


def _positions(chosen: Mask, present: Mask) -> list[int] | None:
    """Where the chosen channels lie among those present; None if they are all of them."""
    among = chosen[present]
    return None if every(among) else _indices(among)


def _channel_dim(node: Node) -> int:
    assert node.output.axis is not None
    return node.output.axis - len(node.output.shape)


def _plan_layer(
    node: Node,
    layer: Layer,
    graph: Graph,
    tensors: dict[str, TensorSlice],
    layers: dict[str, Action],
    numbers: PlanTensors,
) -> None:
    assert layer.call is not None
    name, out = layer.call.name, node.output
    present = layer.input.keep if layer.input.axis is not None else np.ones_like(layer.columns)
    extra = fold_into_bias(layer, graph.tensors[layer.tensors["weight"]]) if layer.mixes else None
    folds = extra is not None and bool(extra[layer.rows].any())
    select, expand = _positions(layer.columns, present), _positions(layer.rows, out.keep)
    _add_slices(tensors, layer, graph)
    if folds:
        assert extra is not None
        numbers.bias[name] = torch.from_numpy(extra[layer.rows])
    if expand is not None:
        numbers.fill[name] = torch.from_numpy(np.where(out.fixed, out.numbers, 0.0)[out.keep])
    if every(layer.rows) and every(layer.columns) and select is None and expand is None and not folds:
        return
    sliced = Slice(
        inputs=_pair(layer.columns) if layer.mixes else None,
        outputs=_pair(layer.rows),
        select=select,
        expand=expand,
        width=how_many(out.keep),
        dim=_channel_dim(node),
        adds_bias=folds and "bias" not in layer.tensors,
        groups=_live_groups(layer) if layer.groups > 1 and not layer.ragged else None,
    )
    blocks = list(zip(*_block_sizes(layer), strict=True)) if layer.ragged else []
    layers[name] = RaggedSlice(**vars(sliced), blocks=blocks) if layer.ragged else sliced


def _plan_constant(node: Node, layer: Layer, layers: dict[str, Action], numbers: PlanTensors) -> None:
    assert layer.call is not None
    name, out = layer.call.name, node.output
    layers[name] = EmitConstant(
        outputs=_pair(out.keep),
        dim=_channel_dim(node),
        window=_window(layer.call.module),
        transposed=layer.transposed,
    )
    numbers.constant[name] = torch.from_numpy(np.where(out.fixed, out.numbers, 0.0)[out.keep])


def _window(module: nn.Module) -> list[list[int]] | None:
    if not isinstance(module, nn.modules.conv._ConvNd) or module.padding == "same":
        return None
    padding = (0,) * len(module.kernel_size) if module.padding == "valid" else module.padding
    settings: list[tuple[Any, ...]] = [module.kernel_size, module.stride, tuple(padding), module.dilation]
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        settings.append(module.output_padding)
    return [[int(s) for s in setting] for setting in zip(*settings, strict=True)]


def _block_sizes(layer: Layer) -> tuple[list[int], list[int]]:
    """Outputs and inputs of each group that stays."""
    rows, columns = layer.rows.reshape(layer.groups, -1), layer.columns.reshape(layer.groups, -1)
    live = rows.any(1)
    return [int(n) for n in rows[live].sum(1)], [int(n) for n in columns[live].sum(1)]


def _live_groups(layer: Layer) -> int:
    return int(layer.rows.reshape(layer.groups, -1).any(1).sum())


def _add_slices(tensors: dict[str, TensorSlice], layer: Layer, graph: Graph) -> None:
    every_row, every_column = every(layer.rows), every(layer.columns)
    if every_row and every_column:
        return
    rows = {} if every_row else {0: _indices(layer.rows)}
    for role, name in layer.tensors.items():
        shape = list(graph.tensors[name].shape)
        if role == "weight" and layer.groups > 1:
            tensors[name] = replace(_grouped_slice(layer), shape=shape)
            continue
        cut = rows
        if role == "weight" and layer.mixes:
            across = {} if every_column else {1: _indices(layer.columns)}
            # dimension 0 first, whichever of the two it is
            cut = {**rows, **across}
            if layer.transposed:
                cut = {1 - dim: kept for dim, kept in reversed(cut.items())}
        if cut and shape:
            tensors[name] = TensorSlice(dims=cut, shape=shape)


def _grouped_slice(layer: Layer) -> TensorSlice:
    first, second = (layer.columns, layer.rows) if layer.transposed else (layer.rows, layer.columns)
    blocks = second.reshape(layer.groups, -1)
    live = layer.rows.reshape(layer.groups, -1).any(1)
    return TensorSlice(
        dims={0: _indices(first)},
        columns=[_indices(block) for block in blocks[live]],
        heights=_block_sizes(layer)[0] if layer.ragged else None,
    )


def _kept(analysis: Analysis) -> tuple[Kept, ...]:
    reasons: dict[str, list[str]] = {}
    for node in analysis.nodes:
        reason = node.rule.refusal(node)
        if not reason:
            continue
        pins = any(v.axis is not None or v.channel_of_entry is not None for v in node.inputs)
        owns = any(v.parameter is not None for v in node.inputs) and any(v.depends_on_input for v in node.inputs)
        if pins or owns:
            known = reasons.setdefault(node.call.name if node.call is not None else "", [])
            if reason not in known:
                known.append(reason)
    return tuple(Kept(layer=name, reason="; ".join(several)) for name, several in reasons.items())
