"""Groups of a convolution: how large each stays."""

import numpy as np

from diffsparse.compaction.masks import Mask

# Groups of different sizes run one by one, which pays only for a few groups and a real saving.
MOST_RAGGED_GROUPS, RAGGED_GAIN = 8, 1.1


def regular(rows: Mask, columns: Mask, groups: int) -> tuple[Mask, Mask]:
    """The smallest grouped convolution around these rows and columns: live groups, all of one size."""
    by_row, by_column = rows.reshape(groups, -1), columns.reshape(groups, -1)
    live = np.logical_or.reduce(by_row, axis=1)
    by_column = by_column & live[:, None]
    height, width = by_row.sum(1).max(), max(by_column.sum(1).max(), 1)
    out_rows, out_columns = map(filled, by_row, height * live), map(filled, by_column, width * live)
    return np.concatenate([*out_rows]), np.concatenate([*out_columns])


def filled(mask: Mask, count: int, candidates: Mask | bool = True) -> Mask:
    """`mask` with candidates added from the front until it has `count` channels, or no candidate is left."""
    wider = mask.copy()
    wider[np.flatnonzero(candidates & ~mask)[: max(int(count - mask.sum()), 0)]] = True
    return wider


def ragged_pays(ragged: tuple[Mask, Mask], even: tuple[Mask, Mask], groups: int) -> bool:
    """Whether groups of different sizes save enough; both are given as rows and columns."""

    def pairs(rows: Mask, columns: Mask) -> int:
        return int((rows.reshape(groups, -1).sum(1) * columns.reshape(groups, -1).sum(1)).sum())

    live = int(ragged[0].reshape(groups, -1).any(1).sum())
    return 1 < live <= MOST_RAGGED_GROUPS and RAGGED_GAIN * pairs(*ragged) < pairs(*even)
