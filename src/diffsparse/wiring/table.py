"""A stage for inference that keeps the states of its nodes in one table, on maps with the images last."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.compaction import adaptors
from diffsparse.compaction.stretch import ConstantMap
from diffsparse.wiring.bags import Mix, SparseConv
from diffsparse.wiring.stage import Nodes, OrdinaryStage

# Bytes that the layouts of a stage's sparse convolutions may take, or more if their output is larger than this.
LARGEST_LAYOUT = 1 << 24

_KNOWN = {OrdinaryStage, Nodes, nn.ModuleList, nn.Conv2d, nn.Identity}
_KNOWN |= {adaptors.Constant, ConstantMap, adaptors.PassOn}


class SparseNodes(nn.Module):
    """The nodes of a group on maps with the images last; `inplace` may overwrite the input."""

    def __init__(self, norm: nn.Module, filters: SparseConv, *, inplace: bool) -> None:
        super().__init__()
        self.norm, self.filter, self.inplace = norm, filters, inplace

    def forward(self, maps: Tensor) -> Tensor:
        # the norm sees all images as one wide image
        normed: Tensor = self.norm(maps.flatten(2)[None])[0]
        return cast(Tensor, self.filter(F.relu(normed, self.inplace).view_as(maps)))


class SparseFront(nn.Module):
    """A convolution (N, C, H, W) to (N, C', H', W') whose output lies in memory as the table after it needs it."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = SparseConv(conv)

    @torch.no_grad()
    def forward(self, input: Tensor) -> Tensor:
        return cast(Tensor, self.conv(images_last(input)).permute(3, 0, 1, 2))


class ImagesLast(nn.Module):
    """Rearranges maps (N, C, H, W) in memory so that the images come last."""

    def forward(self, x: Tensor) -> Tensor:
        return images_last(x).permute(3, 0, 1, 2)


class OnMaps(nn.Module):
    """Runs a module for maps (N, channels, H, W) on maps with the images last."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, maps: Tensor) -> Tensor:
        return images_last(self.module(_images_first(maps)))


class TableStage(nn.Module):
    """A stage for inference: nodes write their states into one table, and mixes read from it.

    A concatenation for each target group would copy all earlier states again and again.

    Args:
        nodes, mixes: one module per source or target group, for maps with the images last.
        rows: number of maps that all nodes give together.
        images: number of images to run at once, so few that the table stays in the cache.
        contiguous: whether the output is contiguous; otherwise its images lie last in memory.

    Shape: (N, inputs, H, W) to (N, outputs, H', W').
    """

    def __init__(
        self, nodes: nn.ModuleList, mixes: nn.ModuleList, rows: int, images: int, *, contiguous: bool = True
    ) -> None:
        super().__init__()
        self.nodes, self.mixes, self.rows, self.images, self.contiguous = nodes, mixes, rows, images, contiguous

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        starts = range(0, max(len(x), 1), self.images)
        parts = [self._run(images_last(x[first : first + self.images])) for first in starts]
        maps = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return _images_first(maps) if self.contiguous else maps.permute(3, 0, 1, 2)

    def _run(self, maps: Tensor) -> Tensor:
        if len(self.nodes) == 1:
            return cast(Tensor, self.mixes[0](self.nodes[0](maps)))
        filled = 0
        for group, mix in zip(self.nodes, self.mixes, strict=True):
            state = group(maps)
            if filled == 0:
                table = state.new_empty(self.rows, *state.shape[1:])
            table[filled : filled + len(state)] = state
            filled += len(state)
            maps = mix(table[:filled])
        return maps

    def extra_repr(self) -> str:
        return f"rows={self.rows}, images={self.images}"


def table_stage(
    stage: OrdinaryStage, mixes: nn.ModuleList, rows: int, images: int, *, sparse: bool, contiguous: bool
) -> TableStage:
    """`stage` with these mixes and a table of `rows` states, and with sparse or ordinary filters."""
    pairs = zip(stage.nodes, [None, *mixes][:-1], strict=True)
    nodes = nn.ModuleList(_sparse_nodes(group, front) if sparse else OnMaps(group) for group, front in pairs)
    return TableStage(nodes, mixes, rows, images, contiguous=contiguous)


def _sparse_nodes(group: nn.Module, front: nn.Module | None) -> nn.Module:
    """The nodes behind the mix `front` in sparse form; as they are if compaction changed them in an unusual way."""
    if type(group) is Nodes and SparseConv.fits(group.filter) and not hooks_of(group.filter):
        norm: nn.Module = group.norm
        inplace = isinstance(front, Mix)
        if type(norm) in (nn.BatchNorm2d, nn.Identity) and not hooks_of(norm):
            return SparseNodes(norm, SparseConv(group.filter), inplace=inplace)
        if type(norm) is nn.Identity and [type(hook) for hook in hooks_of(norm)] == [adaptors.ExpandOutput]:
            filters = SparseConv(group.filter, norm.get_buffer(adaptors.EXPAND), norm.get_buffer(adaptors.FILL).relu())
            return SparseNodes(nn.Identity(), filters, inplace=inplace)
    return OnMaps(group)


def is_known(part: nn.Module) -> bool:
    """Whether this package made this part of a stage, so that it is known to treat each image separately."""
    ours = all(isinstance(hook, adaptors.SelectInput | adaptors.ExpandOutput) for hook in hooks_of(part))
    return ours and (type(part) in _KNOWN or (type(part) is nn.BatchNorm2d and part.running_mean is not None))


def layouts_fit(outputs: Tensor, images: int, reads: int = 9) -> bool:
    """Whether the layouts of convolutions with these outputs, (N, C, H, W), are small enough for `images` at once."""
    pixels = outputs[0].numel()
    # an index and a weight for each of the pixels that an output pixel reads
    return pixels * reads * (4 + 4) <= max(LARGEST_LAYOUT, pixels * images * outputs.element_size())


def edge_matrix(conv: nn.Conv2d, sources: int) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a 1x1 convolution on all `sources` maps, including its select and expand hooks."""
    weight, bias = conv.weight[:, :, 0, 0], conv.bias
    matrix = weight.new_zeros(len(weight), sources)
    matrix[:, getattr(conv, adaptors.SELECT, slice(None))] = weight
    if not hasattr(conv, adaptors.EXPAND):
        return matrix, bias
    full = conv.get_buffer(adaptors.FILL).clone()
    full[conv.get_buffer(adaptors.EXPAND)] = 0.0 if bias is None else bias
    return matrix.new_zeros(len(full), sources).index_copy(0, conv.get_buffer(adaptors.EXPAND), matrix), full


def hooks_of(module: nn.Module) -> list[object]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def images_last(x: Tensor) -> Tensor:
    """Maps (N, C, H, W) as contiguous (C, H, W, N)."""
    if x.is_contiguous():
        # torch transposes a matrix about twice as fast
        return x.flatten(1).t().contiguous().view(*x.shape[1:], len(x))
    return x.permute(1, 2, 3, 0).contiguous()


def _images_first(maps: Tensor) -> Tensor:
    """Contiguous maps (C, H, W, N) as contiguous (N, C, H, W)."""
    return maps.flatten(0, 2).t().contiguous().view(maps.shape[3], *maps.shape[:3])
