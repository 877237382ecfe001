"""From an ordinary stage, as compaction leaves it, to one with its states in a table."""

from torch import Tensor, nn

from diffsparse.compaction.adaptors import (
    EXPAND,
    FILL,
    SELECT,
    Constant,
    ConstantMap,
    ExpandOutput,
    PassOn,
    SelectInput,
)
from diffsparse.wiring.bags import Mix, SparseConv
from diffsparse.wiring.stage import Nodes, OrdinaryStage
from diffsparse.wiring.table import OnMaps, SparseNodes, TableStage

LARGEST_LAYOUT = 1 << 24
"""Bytes that the layouts of sparse convolutions in a stage may take, where what they give does not take more."""

_KNOWN = {OrdinaryStage, Nodes, nn.ModuleList, nn.Conv2d, nn.Identity, Constant, ConstantMap, PassOn}


def is_known(part: nn.Module) -> bool:
    """Whether a part of a stage is as this package makes it, so that it treats each image by itself."""
    if not all(isinstance(hook, SelectInput | ExpandOutput) for hook in hooks_of(part)):
        return False
    return type(part) in _KNOWN or (type(part) is nn.BatchNorm2d and part.running_mean is not None)


def layouts_fit(outputs: Tensor, images: int, reads: int = 9) -> bool:
    """Whether convolutions that give this, (N, C, H, W), may be sparse for so many images at once.

    For each pixel of an image the layout has an index and a weight for every pixel that is read, `reads` of them.
    """
    pixels = outputs[0].numel()
    return pixels * reads * (4 + 4) <= max(LARGEST_LAYOUT, pixels * images * outputs.element_size())


def table_stage(
    stage: OrdinaryStage, mixes: nn.ModuleList, rows: int, images: int, *, sparse: bool, contiguous: bool
) -> TableStage:
    """The stage with a table of `rows` states, its filters sparse or convolutions."""
    fronts = [None, *mixes][:-1]
    pairs = zip(stage.nodes, fronts, strict=True)
    nodes = nn.ModuleList(_sparse_nodes(group, front) if sparse else OnMaps(group) for group, front in pairs)
    return TableStage(nodes, mixes, rows, images, contiguous=contiguous)


def edge_matrix(conv: nn.Conv2d, sources: int) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a 1x1 convolution and the select and expand around it, on all `sources` maps."""
    weight, bias = conv.weight[:, :, 0, 0], conv.bias
    matrix = weight.new_zeros(len(weight), sources)
    matrix[:, getattr(conv, SELECT, slice(None))] = weight
    if not hasattr(conv, EXPAND):
        return matrix, bias
    full = conv.get_buffer(FILL).clone()
    full[conv.get_buffer(EXPAND)] = 0.0 if bias is None else bias
    return matrix.new_zeros(len(full), sources).index_copy(0, conv.get_buffer(EXPAND), matrix), full


def _sparse_nodes(group: nn.Module, front: nn.Module | None) -> nn.Module:
    """Nodes behind a mix on maps with the images last; sparse unless compaction has made something else of them."""
    if type(group) is Nodes and SparseConv.fits(group.filter) and not hooks_of(group.filter):
        norm: nn.Module = group.norm
        inplace = isinstance(front, Mix)
        if type(norm) in (nn.BatchNorm2d, nn.Identity) and not hooks_of(norm):
            return SparseNodes(norm, SparseConv(group.filter), inplace=inplace)
        if type(norm) is nn.Identity and [type(hook) for hook in hooks_of(norm)] == [ExpandOutput]:
            filters = SparseConv(group.filter, norm.get_buffer(EXPAND), norm.get_buffer(FILL).relu())
            return SparseNodes(nn.Identity(), filters, inplace=inplace)
    return OnMaps(group)


def hooks_of(module: nn.Module) -> list[object]:
    """The forward hooks of a module."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
