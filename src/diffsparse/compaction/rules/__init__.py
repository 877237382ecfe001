"""Rules, a few per file, and which of them describes which operator."""

from collections.abc import Callable
from typing import Any

from torch import nn

from diffsparse.compaction.graph import Graph, Node
from diffsparse.compaction.rules import (
    along,
    assembly,
    attention,
    blank,
    channelwise,
    contraction,
    embedding,
    layers,
    matrix,
    movement,
    pointwise,
    recurrent,
    spatial,
    windows,
)
from diffsparse.compaction.rules.base import OPAQUE, EachChannel, Rule, argument, kinds_of, pin, read_all, unite, widen
from diffsparse.compaction.rules.layer import LayerRule
from diffsparse.compaction.rules.pointwise import POINTWISE
from diffsparse.compaction.rules.vectors import is_stored, reads_vectors, track_results, track_stored
from diffsparse.errors import SparsityError

__all__ = ["OPAQUE", "POINTWISE", "EachChannel", "RULES", "Rule", "argument", "canonical", "describe"]
__all__ += ["pin", "read_all", "register_rule", "true_attributes", "unite", "widen"]

RULES: dict[str, Rule] = {}
"""Rules by the canonical name of the operator."""
_BY_MODULE: dict[type | str, Rule] = {}
_RENAMED = {
    **dict.fromkeys(["radd", "iadd"], "add"),
    **dict.fromkeys(["isub", "subtract"], "sub"),
    **dict.fromkeys(["imul", "rmul", "multiply"], "mul"),
    **dict.fromkeys(["truediv", "itruediv", "divide"], "div"),
    **dict.fromkeys(["concat", "concatenate"], "cat"),
    "T.__get__": "transpose_all",
}


def canonical(func: Callable[..., Any]) -> str:
    """One name for `torch.relu`, `F.relu`, `Tensor.relu_` and friends."""
    name: str = getattr(func, "__name__", "unknown")
    attribute: str = getattr(getattr(func, "__self__", None), "__name__", "unknown")
    name = f"{attribute}.__get__" if name == "__get__" else name.strip("_")
    return _RENAMED.get(name, name)


def register_rule(op: str | Callable[..., Any], rule: Rule, *, replace: bool = False) -> None:
    """Let `rule` describe an operator to `compact`, from now on.

    Args:
        op: a torch function or method, such as `torch.atan`, or its name: one name stands for all spellings
            (`torch.relu`, `F.relu` and `Tensor.relu_` are `"relu"`).
        rule: what is true of it; see `diffsparse.compaction.Rule`. Check it with `diffsparse.testing.check_rule`.
        replace: whether to replace the rule that the operator has.

    Raises:
        SparsityError: the operator already has a rule, or one of the arguments is of the wrong kind.

    Example:
        A running sum over pixels treats each channel by itself. Zeros stay zero; other constants do not stay constant:

        >>> import torch, diffsparse as ds
        >>> from diffsparse.compaction.rules import EachChannel, argument
        >>> class RunningSum(EachChannel):
        ...     def infer(self, node, graph):
        ...         source = node.inputs[0]
        ...         if source.axis is None or argument(node, 1, "dim") % len(source.shape) == source.axis:
        ...             return False
        ...         node.output.track(source.axis, source.zero, node.result)
        ...         return True
        >>> ds.register_rule(torch.cumsum, RunningSum())
        >>> ds.testing.check_rule(lambda x: x.cumsum(-1))
    """
    name = canonical(op) if callable(op) else op
    if not isinstance(name, str) or not name or name == "unknown":
        raise SparsityError(f"op must be a torch function or the name of one, got {op!r:.50}")
    if not isinstance(rule, Rule):
        raise SparsityError(f"rule must be an instance of Rule, got {rule!r:.50}")
    if name in RULES and not replace:
        raise SparsityError(f"'{name}' already has a rule, {type(RULES[name]).__name__}; replace=True replaces it")
    RULES[name] = rule
    _BY_MODULE.update(dict.fromkeys(rule.modules, rule))


def describe(node: Node, graph: Graph) -> Rule:
    """The rule of `node`, once it has inferred what it can; the opaque rule where none applies."""
    first = rule = RULES.get(node.op) if node.outputs else None
    stored = is_stored(node)
    if stored:
        track_stored(node.inputs, graph)
    while rule is not None:
        # what is more than vectors becomes the weight of a layer, and that rule takes it as it is
        takes = not stored or isinstance(rule, LayerRule) or reads_vectors(node)
        if takes and rule.infer(node, graph):
            return rule
        rule = rule.otherwise
    if stored:
        track_results(node)
    node.reason = "" if first is None else first.reason
    return OPAQUE


def true_attributes(module: nn.Module) -> dict[str, int]:
    """What the module should say of its widths, from the tensors that it holds."""
    rule = next((_BY_MODULE[kind] for kind in kinds_of(module) if kind in _BY_MODULE), OPAQUE)
    return rule.true_attributes(module)


for _file in (
    pointwise,
    spatial,
    movement,
    layers,
    contraction,
    matrix,
    attention,
    along,
    channelwise,
    assembly,
    blank,
    windows,
    embedding,
    recurrent,
):
    for _op, _rule in _file.OPERATORS.items():
        register_rule(_op, _rule)
