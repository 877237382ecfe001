"""A stage for inference that keeps the states of its nodes in one table, on maps with the images last."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.wiring.bags import SparseConv


class SparseNodes(nn.Module):
    """The nodes of a group on maps with the images last.

    Args:
        norm: a module that acts on each channel by itself, for maps (N, nodes, H, W).
        filters: of the nodes.
        inplace: whether the maps it is given may be written to.
    """

    def __init__(self, norm: nn.Module, filters: SparseConv, *, inplace: bool) -> None:
        super().__init__()
        self.norm, self.filter, self.inplace = norm, filters, inplace

    def forward(self, maps: Tensor) -> Tensor:
        # to the norm, all images are one wide image
        normed: Tensor = self.norm(maps.flatten(2)[None])[0]
        state: Tensor = self.filter(F.relu(normed, self.inplace).view_as(maps))
        return state


class SparseFront(nn.Module):
    """A convolution (N, C, H, W) to (N, C', H', W') in front of a table, which lays its output out as that needs it."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = SparseConv(conv)

    @torch.no_grad()
    def forward(self, input: Tensor) -> Tensor:
        maps: Tensor = self.conv(images_last(input))
        return maps.permute(3, 0, 1, 2)


class ImagesLast(nn.Module):
    """Lays maps (N, C, H, W) out in memory with the images last."""

    def forward(self, x: Tensor) -> Tensor:
        return images_last(x).permute(3, 0, 1, 2)


class OnMaps(nn.Module):
    """A module for maps (N, channels, H, W), run on maps with the images last."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, maps: Tensor) -> Tensor:
        return images_last(self.module(_images_first(maps)))


class TableStage(nn.Module):
    """Nodes and mixes of a stage, for inference: states are written into one table, and mixes read from there.

    A concatenation in front of each target group would copy all earlier states again and again. A batch is run in
    pieces whose table stays in the cache.

    Args:
        nodes: for each source group a module from maps to maps, all with the images last.
        mixes: for each target group one.
        rows: how many maps all nodes give together.
        images: how many images are run at once.
        contiguous: whether the output lies as usual in memory; if not, it does so with the images last.

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
            sums: Tensor = self.mixes[0](self.nodes[0](maps))
            return sums
        table: Tensor | None = None
        filled = 0
        for group, mix in zip(self.nodes, self.mixes, strict=True):
            state = group(maps)
            table = state.new_empty(self.rows, *state.shape[1:]) if table is None else table
            table[filled : filled + len(state)] = state
            filled += len(state)
            maps = mix(table[:filled])
        return maps

    def extra_repr(self) -> str:
        return f"rows={self.rows}, images={self.images}"


def images_last(x: Tensor) -> Tensor:
    """Maps (N, C, H, W) as contiguous (C, H, W, N)."""
    if x.is_contiguous():
        # as a matrix, which torch transposes about twice as quickly
        return x.flatten(1).t().contiguous().view(*x.shape[1:], len(x))
    return x.permute(1, 2, 3, 0).contiguous()


def _images_first(maps: Tensor) -> Tensor:
    """Contiguous maps (C, H, W, N) as contiguous (N, C, H, W)."""
    return maps.flatten(0, 2).t().contiguous().view(maps.shape[3], *maps.shape[:3])
