"""What gradients of gates tell: what an entry is worth to the loss, and whether the loss sees the scale of a group."""

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.optim import Optimizer

from diffsparse.budget.entries import GateEntries
from diffsparse.budget.limits import Mask, Numbers
from diffsparse.budget.shrink import unwrapped_optimizer

LEAST = 1e-3
"""Entries of a group whose worth is below this share of the largest do not matter."""
KEPT = 0.98
"""How much of the estimates stays in each step."""
FREE = 0.02
"""Effects that cancel each other up to so small a share say that the loss does not see the scale of their group."""


class Worth:
    r"""What each entry is worth: the mean square of its effect, :math:`a_i\,\partial L/\partial a_i`.

    To first order the effect is how much the loss changes if the entry dies. Where the network has learned, it is zero
    in the mean, and its square tells (by the Fisher information) how much the loss rises. It can be compared between
    layers, where sizes of gates cannot if a norm behind them takes out their common scale. Where it does, the effects
    of a layer sum to zero.
    Gradients are read just before the optimiser makes its step, when they are those of the whole batch, over all
    processes.

    Args:
        entries: of the gates.
    """

    def __init__(self, entries: GateEntries) -> None:
        self._entries = entries
        self._watched = np.ones(len(entries.sizes), bool)
        # by group: the mean square of effects, and the square of their sum over the number of them
        self._seen = torch.full((2, len(entries.sizes)), torch.nan)
        # by entry: the mean square of effects
        self._squares = torch.zeros(entries.count)
        self._hooks: WeakKeyDictionary[Optimizer, Any] = WeakKeyDictionary()

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Look at gradients in each step of these optimisers."""
        for optimizer in map(unwrapped_optimizer, optimizers if self._watched.any() else ()):
            if optimizer not in self._hooks:
                self._hooks[optimizer] = optimizer.register_step_pre_hook(self._before_step)

    def watch_only(self, groups: Mask) -> None:
        """Look at gradients of gates of these groups alone."""
        self._watched = groups
        if not groups.any():
            self.stop()

    def stop(self) -> None:
        """Look no more."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def __getstate__(self) -> dict[str, Any]:
        # hooks stay with the optimisers that they are in
        return vars(self) | {"_hooks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _hooks=WeakKeyDictionary())

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note gradients, as soon as the closure has made them if there is one."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._note(optimizer)
            return None

        def noted() -> Any:
            loss = closure()
            self._note(optimizer)
            return loss

        return (args, kwargs | {"closure": noted}) if "closure" in kwargs else ((args[0], noted, *args[2:]), kwargs)

    @torch.no_grad()
    def _note(self, optimizer: Optimizer) -> None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for gate, part in self._entries.parts():
            if not self._watched[part].any() or id(gate.alpha) not in held or (effects := gate.effects()) is None:
                continue
            self._seen, self._squares = self._seen.to(effects), self._squares.to(effects)
            sums = torch.stack([effects.square().sum(-1), effects.sum(-1).square()])
            new, old = sums / (effects != 0).sum(-1), self._seen[:, part]
            mixed = torch.where(old.isnan(), new, KEPT * old + (1 - KEPT) * new)
            self._seen[:, part] = torch.where(new.isfinite(), mixed, old)
            squares = self._squares[self._entries.within(part)].view(effects.shape)
            squares.lerp_(torch.where(new[0].isfinite().unsqueeze(-1), effects.square(), squares), 1 - KEPT)

    @property
    def known(self) -> bool:
        """Whether any gradient has been seen."""
        return not bool(self._seen.isnan().all())

    def by_entry(self) -> Numbers:
        """Worth of each entry, of late; zero if no gradient has been seen."""
        return np.asarray(self._squares.double().cpu().numpy())

    def without_scale(self) -> Mask:
        """Groups whose common scale the loss does not see, as far as is known."""
        squares, common = self._numbers()
        # of effects that are next to zero, the sum is rounding error
        return np.asarray((common < FREE * squares) & ~self.without_effect())

    def without_effect(self) -> Mask:
        """Groups of which no entry matters, as far as is known, because a norm behind takes out the scale of each."""
        squares = self._numbers()[0]
        return np.asarray(squares < LEAST**2 * np.max(squares, initial=0.0, where=~np.isnan(squares)))

    def keep(self, entries: GateEntries, groups: Mask, left: Mask) -> None:
        """Go on with these entries, which are left of all, and are of these groups."""
        self._entries, self._watched = entries, self._watched[groups]
        self._seen = self._seen[:, torch.from_numpy(groups).to(self._seen.device)]
        self._squares = self._squares[torch.from_numpy(left).to(self._squares.device)]

    def _numbers(self) -> Numbers:
        return np.asarray(self._seen.double().cpu().numpy())

    def state_dict(self) -> dict[str, Any]:
        """The estimates; None where there is none yet."""
        groups = [[None if np.isnan(number) else float(number) for number in row] for row in self._numbers()]
        return {"groups": groups, "entries": self._squares.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._seen = torch.from_numpy(np.array(state["groups"], float))
        self._squares = torch.tensor(state["entries"], dtype=torch.float64)
