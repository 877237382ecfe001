"""Does a network still train when it is small? Compaction follows what it does in eval mode."""

import numpy as np
from torch import nn

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.probing import quietly_compacted
from diffsparse.compaction.duplicate import duplicate
from diffsparse.compaction.verify import same_draws
from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.undisturbed import restoring


def check_training_path(model: nn.Module, example: Example, entries: GateEntries) -> None:
    """Raise if `model` runs in training mode, and does not any more once some entries are gone."""
    probe = duplicate(model).eval()
    # of two layers in a row not the same share, so that none can stand in for the other
    third, half = (entries.random_patterns(1, dead)[0] for dead in (3, 2))
    entries.impose(probe, np.where(entries.group % 2, half, third))
    with restoring(model, hooks=True):
        small = quietly_compacted(probe, example).model
        reason = _failure(small, example)
        if reason is None or _failure(duplicate(model), example) is not None:
            return
    raise SparsityError(
        f"{type(model).__name__} would not train any more with channels removed: {reason}. Something that runs in "
        "training mode only, such as a second head, reads channels that would be gone, because compaction follows what "
        "runs in eval mode. Let it run in eval mode, too, or use only= to leave the gates alone whose channels it reads"
    )


def _failure(model: nn.Module, example: Example) -> Exception | None:
    with same_draws():
        try:
            example.run(model.train())
        except Exception as error:  # a user's code may raise anything
            return error
    return None
