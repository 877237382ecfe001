"""Sizes that the code of a module holds as attributes, such as how many heads there are: what they have to be now."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from diffsparse.compaction.actions import SetSizes
from diffsparse.compaction.graph import Node, Value
from diffsparse.compaction.masks import Mask, how_many
from diffsparse.compaction.rules import true_attributes
from diffsparse.compaction.rules.base import argument
from diffsparse.compaction.rules.dimensions import count_along, keep_along, kept_along
from diffsparse.compaction.rules.groups import filled

_RESHAPES = frozenset({"view", "reshape", "unflatten"})
_OF_WIDTHS = ("size", "dim", "embed", "inner", "hidden", "width", "channels", "features", "key", "value", "d_")


def changed_sizes(nodes: Iterable[Node]) -> dict[str, SetSizes]:
    """By the name of a module: attributes to change, so that reshapes and splits which were given sizes run."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for node in nodes:
        if node.call is None or not node.heads or not node.outputs:
            continue
        for before, after, of_heads in _resized(node):
            for key in _attributes(node.call.module, before, of_heads):
                found.setdefault(node.call.name, {})[key] = (before, after)
    return {name: SetSizes(sizes=sizes) for name, sizes in found.items()}


def keep_given_widths_alike(nodes: Iterable[Node]) -> bool:
    """Let heads that one call of a module makes with the same given width stay alike; whether anything changed."""
    alike: dict[tuple[int, int], list[tuple[Value, Mask]]] = {}
    for node in nodes:
        if node.op not in _RESHAPES or node.call is None or not (axes := node.output.axes):
            continue
        out, dim, width = node.output, axes[-1], node.output.shape[axes[-1]]
        # a single head has no dimension of heads; then an attribute tells that others have its width, too
        if width in _given(node) and (len(axes) > 1 or any(_attributes(node.call.module, width, of_heads=False))):
            alike.setdefault((id(node.call), width), []).append((out, kept_along(out, dim)))
    changed = False
    for several in alike.values():
        most = max(how_many(kept) for _, kept in several)
        for out, kept in several:
            changed |= keep_along(out, (out.axes or ())[-1], filled(kept, most))
    return changed


def _given(node: Node) -> set[int]:
    """Whole numbers that the call was given."""
    return set(chain(*map(_numbers, node.args[1:]), *map(_numbers, node.kwargs.values())))


def _resized(node: Node) -> Iterator[tuple[int, int, bool]]:
    """Sizes that the call was given and that change: before, after, and whether they count heads."""
    given = _given(node)
    if node.op in _RESHAPES:
        axes, sizes = node.output.axes or (), list(chain(*map(_numbers, node.args[1:])))
        for dim in axes:
            # the batch may happen to be as large as the number of heads, for which the code gives -1
            own = {sizes[dim]} if node.op != "unflatten" and len(sizes) == len(node.output.shape) else given
            # what is within a head comes last
            yield from _change(node.output, dim, own, of_heads=len(axes) > 1 and not (node.within and dim == axes[-1]))
    elif node.op == "split":
        dim = argument(node, 2, "dim", 0) % len(node.output.shape)
        for out in node.outputs:
            if out.axes is not None and dim in out.axes:
                yield from _change(out, dim, given, of_heads=False)


def _change(value: Value, dim: int, given: set[int], *, of_heads: bool) -> Iterator[tuple[int, int, bool]]:
    before, after = value.shape[dim], count_along(value, dim)
    if before in given and before != after:
        yield before, after, of_heads


def _numbers(argument: Any) -> Iterator[int]:
    if isinstance(argument, tuple | list):
        for item in argument:
            yield from _numbers(item)
    elif type(argument) is int:
        yield argument


def _attributes(module: Any, number: int, of_heads: bool) -> Iterator[str]:
    """Attributes with this number whose names tell that they count heads, or that they are a width."""
    for key, value in vars(module).items():
        is_width = any(word in key for word in _OF_WIDTHS)
        if type(value) is int and value == number and (("head" in key and not is_width) if of_heads else is_width):
            yield key


def makes_one_head(node: Node) -> bool:
    """Whether channels become a single head whose width is an attribute of the module."""
    out = node.output
    if node.op not in _RESHAPES or node.call is None or not out.axis or len(out.shape) <= len(node.inputs[0].shape):
        return False
    width = out.shape[out.axis]
    return out.shape[out.axis - 1] == 1 and any(_attributes(node.call.module, width, of_heads=False))


def shows_nothing(node: Node) -> bool:
    """Whether only constants are read of what a node reshapes: verification would not notice a mistake."""
    value = node.inputs[0]
    # if all heads are dead, one of them stays, and is treated as in layers where some live
    if node.heads and any(v.axes is not None and len(v.axes) > 1 for v in (value, *node.outputs)):
        return False
    # a layer that is told its width runs at any
    if node.call is not None and true_attributes(node.call.module):
        return False
    return value.axes is not None and value.depends_on_input and not (value.need & ~value.fixed).any()
