"""Which layers are in series: the output would be constant without them, and the loss does not see their scale."""

from collections.abc import Callable

import numpy as np

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.exact import Exact
from diffsparse.budget.limits import Mask
from diffsparse.budget.worth import Worth


def find_series(entries: GateEntries, worth: Worth, exact: Callable[[], Exact]) -> tuple[Mask, bool]:
    """The groups in series, and whether all groups that matter are; to be called when gradients have been seen.

    Nothing but the cost tells the sizes of their gates apart, so that the most expensive layer would close first, as a
    whole.

    Args:
        entries: of the gates.
        worth: what their gradients tell.
        exact: makes an exact count for the model as it is now; slow.
    """
    idle, large = worth.without_effect(), entries.sizes > 1
    found = worth.without_scale() & large
    if found.any():
        counter = exact()
        found = _needed(found, entries, counter)
        if found.any():
            # the last layer is one of them, though the loss sees its scale
            found |= _needed(large & ~idle & ~found, entries, counter)
    return found, bool(found.any() and (found | idle | ~large).all())


def _needed(groups: Mask, entries: GateEntries, exact: Exact) -> Mask:
    """Those of the groups without which the output would be constant.

    Where the output responds without several of them, none of these is needed, so few trials tell.
    """
    needed, waiting = np.zeros(len(groups), bool), [np.flatnonzero(groups)]
    while waiting:
        closed = waiting.pop()
        if not len(closed) or exact.responds(~np.isin(entries.group, closed)):
            continue
        if len(closed) == 1:
            needed[closed] = True
        else:
            waiting += np.array_split(closed, 2)
    return needed
