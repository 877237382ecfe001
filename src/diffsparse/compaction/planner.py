"""From an analysis to a plan, and the tensors that go with it."""

import numpy as np
import torch
from torch import Tensor

from diffsparse.compaction import actions
from diffsparse.compaction.actions import Action, Slice
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.apply import PlanTensors
from diffsparse.compaction.attributes import changed_sizes
from diffsparse.compaction.bake import ordinary_form
from diffsparse.compaction.borrowed import BorrowedSlice
from diffsparse.compaction.constants import Path
from diffsparse.compaction.folding import fold_batch_norms
from diffsparse.compaction.graph import Call, Node
from diffsparse.compaction.masks import Mask, every, how_many, indices, some
from diffsparse.compaction.multihead import find_multihead
from diffsparse.compaction.patterns import Pattern
from diffsparse.compaction.plan import Kept, Plan
from diffsparse.compaction.positions import Axis
from diffsparse.compaction.rules.layer import Layer
from diffsparse.compaction.rules.merge import fold_into_bias, merged_constants
from diffsparse.compaction.rules.vectors import is_stored
from diffsparse.compaction.stretch import MapSize, Stretch
from diffsparse.compaction.tensor_slice import TensorSlice, slice_tensor
from diffsparse.module_tree import lies_in, runs_in_order


def make_plan(analysis: Analysis, fold: bool = False) -> tuple[Plan, PlanTensors]:
    """The plan of an analysis, with batch norms folded into the layers in front of them if `fold`."""
    contents = PlanTensors()
    tensors, dead = _dead_parts(analysis)
    removed = {name: call for name, call in analysis.removed.items() if not lies_in(name, {*dead})}
    leaves = analysis.dead_modules == "leave"
    layers = {name: _leaving_action(call) if leaves else actions.PassThrough() for name, call in removed.items()}
    for name, call in analysis.emitted.items():
        if not lies_in(name, {*dead}):
            layers[name], contents.constant[name] = _emit_map(analysis, call)
    gone = {*layers, *dead}
    for node in analysis.nodes:
        if node.call is not None and gone and lies_in(node.call.name, gone):
            continue
        if node.layer is not None:
            _plan_layer(node, node.layer, analysis, layers, contents)
        tensors |= node.rule.slices(node, analysis.graph)
    tensors |= _cut_vectors(analysis, gone)
    slim = find_multihead(analysis.graph, analysis.nodes) if analysis.narrow else []
    for each in slim:
        if not lies_in(each.call.name, gone):
            layers[each.call.name] = each.action
            tensors |= each.slices(analysis.graph)
            if (added := each.added_bias) is not None:
                contents.in_proj_bias[each.call.name] = added
    layers |= {name: action for name, action in changed_sizes(analysis.nodes).items() if not lies_in(name, gone)}
    layers |= dead
    if fold:
        fold_batch_norms(analysis, layers, contents)
    return Plan(
        tensors=tensors,
        layers=layers,
        baked=_baked(analysis, layers),
        kept=_kept(analysis, {each.call for each in slim}),
    ), contents


def _cut_vectors(analysis: Analysis, gone: set[str]) -> dict[str, TensorSlice]:
    """What stays of stored vectors that go with the channels of something else."""
    made: dict[str, TensorSlice] = {}
    for vector in analysis.values:
        name, axis = vector.parameter, vector.axis
        if name is not None and axis is not None and not every(vector.keep) and not lies_in(name, gone):
            made[name] = TensorSlice(dims={axis: indices(vector.keep)}, shape=list(vector.shape))
    return made


def _baked(analysis: Analysis, layers: dict[str, Action]) -> dict[str, list[int]]:
    """Modules that change and whose weights are computed, with the shape of what goes in."""
    computed = [layer for _, layer in analysis.layers if layer.computed and layer.call is not None]
    inputs = {layer.call.name: list(layer.operand.shape) for layer in computed}  # type: ignore[union-attr]
    return {name: shape for name, shape in inputs.items() if name in layers and not layers[name].drops_module}


def _leaving_action(call: Call) -> Action:
    """A module leaves a `Sequential` that runs it; any other owner may count or index what it holds."""
    around = call.parent
    if around is None or not runs_in_order(around.module):
        return actions.PassThrough()
    held = len(around.module._modules) > 1 and call.name.rpartition(".")[0] == around.name
    return actions.Remove() if held else actions.PassThrough()


def _emit_map(analysis: Analysis, call: Call) -> tuple[Action, Tensor]:
    constants, out = analysis.constants, call.output
    pattern, anchor = constants.of(out), constants.anchor(call)
    assert pattern is not None
    assert anchor is not None
    around, paths = anchor
    table = pattern.data.index_select(out.dim, torch.from_numpy(np.flatnonzero(out.keep)))
    action = actions.EmitMap(
        outputs=_widths(out.keep),
        shape=list(table.shape),
        stretches=list(map(_stretch, pattern.axes, paths)),
        sizes_of=None if around is call else around.name,
        read_only=not analysis.graph.is_exposed(out),
    )
    return action, table


def _stretch(axis: Axis | None, path: Path | None) -> Stretch | None:
    if axis is None or path is None:
        return None
    dim, steps = path
    return Stretch(dim=dim, steps=steps, stride=axis.stride, least=axis.least, left=axis.left, right=axis.right)


def _dead_parts(analysis: Analysis) -> tuple[dict[str, TensorSlice], dict[str, Action]]:
    """What modules with a method `dead_parts` say of themselves: slices of their tensors, and children that leave."""
    tensors: dict[str, TensorSlice] = {}
    dead: dict[str, Action] = {}
    for call in analysis.graph.calls:
        if not hasattr(type(call.module), "dead_parts"):
            continue
        entries, children = call.module.dead_parts()  # type: ignore[operator]
        prefix = f"{call.name}." if call.name else ""
        for key, kept in entries.items():
            shape = list(analysis.graph.tensors[prefix + key].shape)
            tensors[prefix + key] = TensorSlice(dims={0: kept}, shape=shape)
        dead |= {prefix + child: actions.Remove() for child in children}
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


def _fill(layer: Layer) -> Tensor:
    """The numbers of fixed channels that stay. Nobody reads the others, and one has a logarithm and a reciprocal."""
    numbers = np.where(layer.fixed_outputs, layer.output.numbers, 1.0)
    return torch.from_numpy((numbers if layer.scale is None else numbers * layer.scale)[layer.output.keep])


def _one_number(layer: Layer) -> float | None:
    """What an expand puts everywhere, if it is one number."""
    found = set(_fill(layer)[torch.from_numpy(~layer.rows[layer.output.keep])].tolist())
    return found.pop() if len(found) == 1 else None


def _maps(node: Node, layer: Layer, analysis: Analysis, contents: PlanTensors) -> tuple[MapSize | None, MapSize | None]:
    """What varies with the position in an expand behind the layer, and what is added to the layer's outputs."""
    assert layer.call is not None
    fill = adds = None
    out = layer.output
    if layer.mapped_rows is not None and some(out.need & ~layer.rows & layer.mapped_rows):
        pattern = analysis.maps.of(out)
        unread = torch.from_numpy(~(out.fixed | out.mapped)).view(out.grid)
        table = torch.where(unread, 1.0, pattern.data).index_select(out.dim, torch.from_numpy(np.flatnonzero(out.keep)))
        table = _scaled(table, layer, out.keep)
        fill, contents.fill[layer.call.name] = _map_size(analysis, layer.call, pattern, table), table
    if layer.mapped_columns is not None:
        added = analysis.maps.added_by(node, layer.mapped_columns)
        assert added is not None
        table = added.data.index_select(out.dim, torch.from_numpy(np.flatnonzero(layer.rows)))
        table = _scaled(table, layer, layer.rows)
        adds, contents.added[layer.call.name] = _map_size(analysis, layer.call, added, table), table
    return fill, adds


def _scaled(table: Tensor, layer: Layer, chosen: Mask) -> Tensor:
    """A map of some outputs, multiplied as the layer is."""
    if layer.scale is None:
        return table
    shape = [-1 if dim == layer.output.dim else 1 for dim in range(-table.dim(), 0)]
    return table * torch.from_numpy(layer.scale[chosen]).view(shape)


def _map_size(analysis: Analysis, call: Call, pattern: Pattern, table: Tensor) -> MapSize:
    anchor = analysis.constants.anchor_of(call, pattern)
    assert anchor is not None
    around, paths = anchor
    sizes_of = None if around is call else around.name
    return MapSize(shape=list(table.shape), stretches=list(map(_stretch, pattern.axes, paths)), sizes_of=sizes_of)


def _plan_layer(node: Node, layer: Layer, analysis: Analysis, layers: dict[str, Action], contents: PlanTensors) -> None:
    inputs, outputs = _widths(layer.columns) if layer.mixes else None, _widths(layer.rows)
    out, kept, graph = node.output, _widths(node.output.keep), analysis.graph
    if layer.call is None:
        owner = layer.tensors.get("weight", "").rpartition(".")[0]
        if owner and not (every(layer.rows) and every(layer.columns)):
            layers[owner] = Slice(inputs=inputs, outputs=outputs)
        return
    name = layer.call.name
    if layer is not (layer.twins or (layer,))[0]:
        return
    if not some(layer.rows):
        window = node.rule.window(ordinary_form(node) if layer.computed else layer.call.module)
        read_only = len(layer.twins) < 2 and not graph.is_exposed(out)
        layers[name] = actions.EmitConstant(
            outputs=kept, dim=out.dim, window=window, transposed=layer.transposed, read_only=read_only
        )
        contents.constant[name] = _fill(layer)
        return
    weight = layer.held("weight", graph) if layer.mixes and layer.has("weight") else None
    merged = merged_constants(layer, weight) if weight is not None else None
    if merged is not None:
        contents.weight[name] = slice_tensor(merged, node.rule.slices(node, graph)[layer.names["weight"]])
    extra = fold_into_bias(layer, weight)[layer.rows] if weight is not None else np.zeros(0)
    folds = bool(extra.any())
    select, expand = _positions(layer.columns, layer.present), _positions(layer.rows, out.keep)
    fill, adds = _maps(node, layer, analysis, contents)
    if folds:
        contents.bias[name] = torch.from_numpy(extra)
    number = None
    if expand is not None and fill is None:
        contents.fill[name], number = _fill(layer), _one_number(layer)
    whole = every(layer.rows) and every(layer.columns)
    if layer.scale is not None:
        contents.scale[name] = torch.from_numpy(layer.scale[layer.rows]), int(layer.transposed)
    elif whole and select is None and expand is None and not folds and adds is None:
        return
    sliced = Slice(
        inputs=inputs,
        outputs=outputs,
        select=select,
        expand=expand,
        width=kept[1],
        dim=out.dim,
        adds_bias=folds and not layer.has("bias"),
        groups=len(layer.block_sizes) if layer.groups > 1 and not layer.ragged else None,
        number=number,
        fill=fill,
        adds=adds,
        rescaled=layer.scale is not None,
    )
    layers[name] = sliced
    if layer.ragged:
        layers[name] = actions.RaggedSlice(**vars(sliced), blocks=layer.block_sizes)
    elif layer.borrows:
        rows, columns = (None if every(mask) else indices(mask) for mask in (layer.rows, layer.columns))
        layers[name] = BorrowedSlice(**vars(sliced), rows=rows, columns=columns)


def _kept(analysis: Analysis, slim: set[Call]) -> tuple[Kept, ...]:
    reasons: dict[str, dict[str, None]] = {}
    for node in analysis.nodes:
        reason = _constant_but_computed(node) or node.rule.refusal(node)
        if not reason or node.call in slim or (node.heads and _is_narrower(node)):
            continue
        if is_stored(node) and every(node.output.need):
            continue
        pins = any(v.axes is not None for v in node.inputs)
        owns = any(v.parameter is not None for v in node.inputs) and any(v.depends_on_input for v in node.inputs)
        if pins or owns:
            reasons.setdefault(node.call.name if node.call is not None else "", {})[reason] = None
    return tuple(Kept(layer=name, reason="; ".join(several)) for name, several in reasons.items())


def _constant_but_computed(node: Node) -> str:
    """Why a layer whose output is the same for every input still computes it; empty for any other."""
    out, layer = node.output if node.outputs else None, node.layer
    if layer is None or out is None or not out.known or not out.depends_on_input or not some(layer.rows & ~out.fixed):
        return ""
    return f"{node.op}: the same for every input, but what it is at other sizes is not known without computing it"


def _is_narrower(node: Node) -> bool:
    return any(value.axes is not None and not every(value.keep) for value in (*node.inputs, *node.outputs))
