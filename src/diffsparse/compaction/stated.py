"""Widths that layers state in attributes, such as `in_channels`, and that code outside of them computes with."""

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import nn

from diffsparse.compaction.rules import true_attributes
from diffsparse.compaction.rules.layer import Layer
from diffsparse.module_tree import modules_by_name

Stated: TypeAlias = dict[str, set[str]]
"""By the name of a module, attributes with a width."""


def stated_widths(model: nn.Module, run: Callable[[nn.Module], Any]) -> Stated:
    """The widths that code other than torch's own reads while `run` runs the model, which is left as it is."""
    found: Stated = {}
    watched = [(name, module, true_attributes(module)) for name, module in modules_by_name(model).items()]
    kinds = [(module, type(module)) for _, module, widths in watched if widths]
    for name, module, widths in watched:
        if widths:
            module.__class__ = _watching(type(module), frozenset(widths), found.setdefault(name, set()))
    try:
        run(model)
    except Exception:
        # the user's model may insist on its classes
        return {}
    finally:
        for module, kind in kinds:
            module.__class__ = kind
    return {name: read for name, read in found.items() if read}


def _watching(kind: Any, widths: frozenset[str], read: set[str]) -> type:
    """The class with a note of each of these attributes that is read from outside of torch."""

    def look_up(self: Any, key: str) -> Any:
        if key in widths and not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            read.add(key)
        return kind.__getattribute__(self, key)

    return type(kind.__name__, (kind,), {"__getattribute__": look_up, "__module__": kind.__module__})


def keep_stated(layer: Layer, attributes: set[str]) -> None:
    """Keep the inputs or outputs of a free layer that its attributes count."""
    inputs = any(key.startswith("in_") for key in attributes)
    if layer.mixes and inputs and layer.given is None and layer.input.axis is not None:
        layer.columns = layer.columns | True
        # what is fixed is no longer folded
        layer.input.need |= layer.input.fixed
    if not layer.mixes or any(not key.startswith("in_") for key in attributes):
        layer.rows = layer.rows | True
        if not layer.mixes:
            layer.columns = layer.rows
            layer.read_operand()
