"""Warnings while a run goes on, as early as something can be seen to go wrong."""

import math
from collections.abc import Sequence
from typing import Any

from diffsparse.penalties.strength import Pace
from diffsparse.training.context import Phase

FALLING = 0.98
"""A loss above this share of that of the first epoch has not fallen."""
FEWEST = 3
"""Epochs before anything is judged."""
RECOVERY = 100
"""Steps that a network needs to recover from becoming small, at least."""


def early_advice(phase: Phase, pace: Pace, steps: int, records: Sequence[dict[str, Any]]) -> list[str]:
    """What to tell the user after the last epoch of the log; each thing is said after one epoch only.

    Args:
        phase: what is trained.
        pace: how far the run can move gates.
        steps: of an epoch.
        records: the log.
    """
    own = [record for record in records if record["phase"] == phase.name]
    now, first, found = own[-1], own[0], list[str]()
    where = f"after epoch {now['epoch']} of {phase.epochs}"
    early = now["epoch"] == max(FEWEST, math.ceil(phase.epochs / 4)) < phase.epochs
    if early and now["train_loss"] > FALLING * first["train_loss"]:
        losses = f"{first['train_loss']:.3g} in the first epoch, {now['train_loss']:.3g} now"
        found.append(f"{where} the loss has not fallen ({losses}): a smaller learning rate or a warm-up may help")
    if shrunk := now.get("shrunk"):
        # moments are counted from the beginning of the phase, in epochs
        left = round(steps * (phase.epochs - shrunk[-1]))
        if left < RECOVERY:
            found.append(f"the network became small with {left} steps left to recover: more epochs would help it")
    half = FEWEST <= now["epoch"] == math.ceil(phase.epochs / 2)
    # a delay or a ramp that ends late makes zeros late
    acts = phase.sparsifying.delay_epochs + phase.sparsifying.ramp_epochs < now["epoch"]
    if half and acts and now["zeros"] == 0 and phase.method.waits_for_zeros(phase.sparsifying):
        reason = (
            phase.method.weakness(phase.sparsifying, pace)
            or "a larger strength, or a cost (macs) in its place, would make some"
        )
        found.append(f"{where} nothing is zero: {reason}")
    return found
