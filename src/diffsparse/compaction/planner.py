"""From an analysis to a plan, and the tensors that go with it."""

import numpy as np
import torch
from torch import Tensor, nn

from diffsparse.compaction.actions import Action, EmitConstant, EmitMap, PassThrough, RaggedSlice, Remove, Slice
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.fold import fold_batch_norms
from diffsparse.compaction.graph import Call, Graph, Mask, Node, Value, every, how_many, indices, some
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.plan_tensors import PlanTensors
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.layers import fold_into_bias
from diffsparse.compaction.tensor_slice import TensorSlice
from diffsparse.module_tree import lies_in


def make_plan(analysis: Analysis, fold: bool = False) -> tuple[Plan, PlanTensors]:
    """The plan of an analysis, with batch norms folded into the layers in front of them if `fold`."""
    numbers = PlanTensors()
    layers: dict[str, Action] = {name: _leaving_action(call) for name, call in analysis.removed.items()}
    for name, call in analysis.emitted.items():
        layers[name], numbers.constant[name] = _emit_map(call)
    tensors, dead = _dead_parts(analysis)
    gone = {*layers, *dead}
    for node in analysis.nodes:
        if node.call is not None and gone and lies_in(node.call.name, gone):
            continue
        if node.layer is not None:
            _plan_layer(node, node.layer, analysis.graph, layers, numbers)
        tensors |= node.rule.slices(node, analysis.graph)
    plan = Plan(tensors=tensors, layers={**layers, **dead}, kept=_kept(analysis))
    if fold:
        plan, numbers.affine = fold_batch_norms(analysis, plan)
    return plan, numbers


def _leaving_action(call: Call) -> Action:
    """A module leaves a `Sequential` that runs it; anyone else may count or index what it holds."""
    around = call.parent
    if around is None or type(around.module).forward is not nn.Sequential.forward:
        return PassThrough()
    held = len(around.module._modules) > 1 and call.name.rpartition(".")[0] == around.name
    return Remove() if held else PassThrough()


def _emit_map(call: Call) -> tuple[Action, Tensor]:
    out, start, data = call.output, call.input, call.data
    assert out is not None
    assert out.axis is not None
    assert start is not None
    assert data is not None
    kept = data.index_select(out.axis, torch.from_numpy(np.flatnonzero(out.keep)).to(data.device))
    size = [None if dim == start.axis else n for dim, n in enumerate(start.shape)][1:]
    return EmitMap(outputs=_widths(out.keep), shape=list(kept.shape[1:]), input_size=size), kept


def _dead_parts(analysis: Analysis) -> tuple[dict[str, TensorSlice], dict[str, Action]]:
    """What modules with a method `dead_parts` say of themselves: slices of their tensors, and children that leave."""
    tensors: dict[str, TensorSlice] = {}
    dead: dict[str, Action] = {}
    for name, module in analysis.modules.items():
        if not hasattr(type(module), "dead_parts"):
            continue
        entries, children = module.dead_parts()  # type: ignore[operator]
        prefix = f"{name}." if name else ""
        for key, kept in entries.items():
            shape = list(analysis.graph.tensors[prefix + key].shape)
            tensors[prefix + key] = TensorSlice(dims={0: kept}, shape=shape)
        dead |= {prefix + child: Remove() for child in children}
    gone = {*analysis.removed, *analysis.emitted, *dead}
    return (
        {name: kept for name, kept in tensors.items() if not lies_in(name, gone)},
        {name: action for name, action in dead.items() if not lies_in(name.rpartition(".")[0], gone)},
    )


def _widths(mask: Mask) -> tuple[int, int]:
    return len(mask), how_many(mask)


def _positions(chosen: Mask, present: Mask) -> list[int] | None:
    """Where the chosen channels lie among those present; None if they are all of them."""
    among = chosen[present]
    return None if every(among) else indices(among)


def _channel_dim(node: Node) -> int:
    assert node.output.axis is not None
    return node.output.axis - len(node.output.shape)


def _fill(out: Value) -> Tensor:
    """The numbers of fixed channels that are there; zero for the others."""
    return torch.from_numpy(np.where(out.fixed, out.numbers, 0.0)[out.keep])


def _plan_layer(node: Node, layer: Layer, graph: Graph, layers: dict[str, Action], numbers: PlanTensors) -> None:
    inputs = _widths(layer.columns) if layer.mixes else None
    if layer.call is None:
        owner = layer.tensors.get("weight", "").rpartition(".")[0]
        if owner and not (layer.rows.all() and layer.columns.all()):
            layers[owner] = Slice(inputs=inputs, outputs=_widths(layer.rows))
        return
    name, out = layer.call.name, node.output
    if not some(layer.rows):
        layers[name] = EmitConstant(
            outputs=_widths(out.keep),
            dim=_channel_dim(node),
            window=node.rule.window(layer.call.module),
            transposed=layer.transposed,
        )
        numbers.constant[name] = _fill(out)
        return
    present = layer.input.keep if layer.input.axis is not None else np.ones_like(layer.columns)
    extra = fold_into_bias(layer, graph.tensors[layer.tensors["weight"]]) if layer.mixes else None
    folds = extra is not None and bool(extra[layer.rows].any())
    select, expand = _positions(layer.columns, present), _positions(layer.rows, out.keep)
    if folds:
        assert extra is not None
        numbers.bias[name] = torch.from_numpy(extra[layer.rows])
    if expand is not None:
        numbers.fill[name] = _fill(out)
    if every(layer.rows) and every(layer.columns) and select is None and expand is None and not folds:
        return
    sliced = Slice(
        inputs=inputs,
        outputs=_widths(layer.rows),
        select=select,
        expand=expand,
        width=how_many(out.keep),
        dim=_channel_dim(node),
        adds_bias=folds and "bias" not in layer.tensors,
        groups=len(layer.block_sizes) if layer.groups > 1 and not layer.ragged else None,
    )
    layers[name] = RaggedSlice(**vars(sliced), blocks=layer.block_sizes) if layer.ragged else sliced


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
