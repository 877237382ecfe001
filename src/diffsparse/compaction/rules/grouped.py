"""What of a grouped convolution can leave: dead groups, and as much of the others as they have in common."""

from typing import TYPE_CHECKING

import numpy as np

from diffsparse.compaction.graph import Mask, indices
from diffsparse.compaction.tensor_slice import TensorSlice

if TYPE_CHECKING:
    from diffsparse.compaction.rules.layer import Layer

# Groups of different sizes run one by one: worth it only for a few groups and a real saving.
MOST_RAGGED_GROUPS, RAGGED_GAIN = 8, 1.1


def regular(rows: Mask, columns: Mask, groups: int) -> tuple[Mask, Mask]:
    """The smallest grouped convolution around these rows and columns: live groups, all of one size."""
    by_row, by_column = rows.reshape(groups, -1), columns.reshape(groups, -1)
    live = by_row.any(1)
    out_rows, out_columns = np.zeros_like(by_row), np.zeros_like(by_column)
    if live.any():
        height, width = by_row[live].sum(1).max(), max(int(by_column[live].sum(1).max()), 1)
        for group in np.flatnonzero(live):
            out_rows[group] = _filled(by_row[group], height)
            out_columns[group] = _filled(by_column[group], width)
    return out_rows.reshape(-1), out_columns.reshape(-1)


def ragged_pays(ragged: tuple[Mask, Mask], even: tuple[Mask, Mask], groups: int) -> bool:
    """Whether groups of different sizes, each as rows and columns, are worth it where groups of one size would do."""

    def pairs(rows: Mask, columns: Mask) -> int:
        return int((rows.reshape(groups, -1).sum(1) * columns.reshape(groups, -1).sum(1)).sum())

    live = int(ragged[0].reshape(groups, -1).any(1).sum())
    return 1 < live <= MOST_RAGGED_GROUPS and RAGGED_GAIN * pairs(*ragged) < pairs(*even)


def grouped_slice(layer: "Layer", shape: list[int]) -> TensorSlice:
    """What stays of the weight of a grouped convolution."""
    first, second = (layer.columns, layer.rows) if layer.transposed else (layer.rows, layer.columns)
    live = layer.rows.reshape(layer.groups, -1).any(1)
    return TensorSlice(
        dims={0: indices(first)},
        columns=[indices(block) for block in second.reshape(layer.groups, -1)[live]],
        heights=[height for height, _ in layer.block_sizes] if layer.ragged else None,
        shape=shape,
    )


def _filled(mask: Mask, count: int) -> Mask:
    """`mask` with further entries from the front until it has `count`."""
    filled = mask.copy()
    filled[np.flatnonzero(~mask)[: max(int(count - mask.sum()), 0)]] = True
    return filled
