"""`sparsify` puts gates into a model that its user wrote."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast, get_args

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsparse.errors import SparsityError, require_module, require_number
from diffsparse.example import Example
from diffsparse.gating.influence import with_influence
from diffsparse.gating.norms import SPARSE_FORM, find_norms, make_sparse, replaceable
from diffsparse.gating.place import Compete, place_gates
from diffsparse.gating.report import note_left
from diffsparse.gating.same import unchanged
from diffsparse.gating.sites import Kind, Site, Sites, find_sites
from diffsparse.module_tree import replace_modules
from diffsparse.nn import GatedLayer, SparseBatchNorm
from diffsparse.selection import Selection, select

Model = TypeVar("Model", bound=nn.Module)

USUAL: tuple[Kind, ...] = ("channels", "neurons", "heads")
"""What is gated unless the user chooses."""


def sparsify(
    model: Model,
    example: Any = None,
    *,
    only: Selection | None = None,
    kinds: Sequence[Kind] | Kind | None = None,
    compete: Compete = "network",
    start: float | None = None,
    rgf: float | None = None,
) -> Model:
    """Put gates into `model`, in place, and return it: everywhere that its run on an example shows can be removed.

    Without an example, batch norms become sparse ones. With one, the model runs a few times, and gates also go to

    - neurons: the hidden units of a feed-forward block, where the layer behind them reads them; gate and up projection
      of gated forms share them;
    - heads: of attention, where the output projection reads them; queries that share keys and values stay together;
    - channels: of convolutions, and linear layers, without a batch norm; together if a group norm binds them;
    - layers, if you ask for them: the output of a residual branch, all of it by one entry, so that depth is learned.

    `print(ds.gating_report(model))` shows what has gates, and why the rest has none.

    Args:
        model: any module; a batch norm itself is returned as a new module.
        example: a tensor, a tuple of positional arguments or a dictionary of keyword arguments. Numbers from real data
            tell best which entries matter.
        only: where, by default everywhere: a name pattern (`"layer1.*"`) or a type, which choose every layer inside
            what they match, a function of the name and module of a layer, or several of these.
        kinds: which of "channels", "neurons", "heads" and "layers"; by default all but the last.
        compete: whether all neurons, and all heads, of the network compete with each other, or those of one "layer".
            Batch norms compete within a layer, and layers over the network.
        start: None keeps the function: a trained model gives the same outputs up to float rounding. Gates start at the
            scale of the batch norm, or at how much the outputs of the model depend on an entry on the example, 1 in the
            mean. A number starts every gate there, for training from scratch; only the scales and shifts of batch norms
            change with it.
        rgf: `elu_alpha` of rectified gradient flow in the new gates, or None.

    Build the optimiser, and wrap the model in DistributedDataParallel, after this: the gates are new parameters.

    Shared modules stay shared; device, dtype, training mode, `requires_grad` and hooks are kept. Batch norms that do
    more than PyTorch's own (a subclass with its own forward pass, parameters or buffers, a pruned one) are left alone
    with a warning. If anything is wrong the model is left as it was.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> sparsify(model)[1].gate
        SignedGate((8,))
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 2))
        >>> sparsify(model, torch.randn(8, 4))[2].input_gate.gate
        SignedGate((16,))
    """
    wanted = _wanted_kinds(model, example, kinds, compete, start)
    given = None if example is None else Example.of(example)
    sites = Sites([], {})
    if given is not None:
        _require_numbers(model, given)
        sites = find_sites(model, given)
    places = [site for site in sites.found if site.kind in wanted]
    norms = find_norms(model) if "channels" in wanted else {}
    chosen = _chosen(model, only, [*norms.values()], places, sites, kinds)
    places = [site for site in places if model.get_submodule(site.layer) in chosen]
    norms = {name: norm for name, norm in norms.items() if norm in chosen}
    norms = replaceable(model, norms, needed=not places)
    replacements: dict[nn.Module, nn.Module] = {}
    # not a comprehension, which is a frame of its own up to Python 3.11: warnings point at the caller
    for name, norm in norms.items():
        replacements[norm] = make_sparse(name, norm, start, rgf)
    places = _not_covered(model, places, {*norms}, sites.left)
    if places and given is not None:
        places = places if start is not None else with_influence(model, given, places)
        with unchanged(model, {model.get_submodule(site.layer) for site in places}, given):
            place_gates(model, places, compete, start, rgf)
    gated = cast(Model, replace_modules(model, replacements))
    note_left(gated, sites.left)
    return gated


def _wanted_kinds(
    model: nn.Module, example: Any, kinds: Sequence[Kind] | Kind | None, compete: Compete, start: float | None
) -> set[Kind]:
    """The kinds to gate; raises if an argument is wrong."""
    if any(isinstance(module, DistributedDataParallel) for module in require_module("model", model).modules()):
        raise SparsityError("DistributedDataParallel would not see new gates; sparsify before wrapping the model")
    if start is not None:
        require_number("start", start)
        if start == 0:
            raise SparsityError("start must be neither zero, where it gets no gradient, nor infinite, got 0")
    if example is not None and not isinstance(example, Tensor | tuple | Mapping):
        raise SparsityError(f"the second argument of sparsify is an example of inputs; give only={example!r:.50}?")
    if compete not in get_args(Compete):
        raise SparsityError(f"compete must be 'layer' or 'network', got {compete!r:.50}")
    given = [kinds] if isinstance(kinds, str) else [*(USUAL if kinds is None else kinds)]
    if not given or not all(kind in get_args(Kind) for kind in given):
        raise SparsityError(f"kinds must be some of {', '.join(get_args(Kind))}, got {kinds!r:.80}")
    if example is None and kinds is not None:
        raise SparsityError("kinds are found in a run of the model; give an example, as sparsify(model, example, ...)")
    return set(given)


def _require_numbers(model: nn.Module, example: Example) -> None:
    """Raise if the example or a parameter is NaN somewhere: nobody could tell then what an entry adds."""
    if any(bool(tensor.isnan().any()) for tensor in example.tensors if tensor.is_floating_point()):
        raise SparsityError("the example holds NaN; give finite numbers, best from real data")
    for name, parameter in model.named_parameters():
        if not parameter.is_meta and bool(parameter.isnan().any()):
            raise SparsityError(f"'{name}' of {type(model).__name__} holds NaN")


def _chosen(
    model: nn.Module,
    only: Selection | None,
    norms: list[nn.Module],
    places: list[Site],
    sites: Sites,
    kinds: Any,
) -> set[nn.Module]:
    """The layers that `only` chooses among those that can be gated; raises if there are none."""
    candidates = {*norms, *(model.get_submodule(site.layer) for site in places)}
    if candidates:
        return select(model, only, candidates, "batch norm to gate" if not sites.found else "layer to gate")
    there = sum(isinstance(module, SparseBatchNorm | GatedLayer) for module in model.modules())
    words = f"nothing to gate in {type(model).__name__}"
    if sites.found:
        others = ", ".join(sorted({site.kind for site in sites.found}))
        raise SparsityError(f"{words} of kinds={kinds!r}; its run shows {others}")
    already = f"; {there} layer(s) have gates already" if there else ""
    if sites.left:
        name, reason = next(iter(sites.left.items()))
        raise SparsityError(f"{words}: no layer reads channels of its own ('{name}': {reason}){already}")
    looked = ", ".join(kind.__name__ for kind in SPARSE_FORM)
    raise SparsityError(
        f"{words}: looked for {looked}{already}. For a network without batch norms give an example of its inputs, "
        "sparsify(model, example)"
    )


def _not_covered(model: nn.Module, places: list[Site], norms: set[str], left: dict[str, str]) -> list[Site]:
    """Sites whose inputs do not come through a batch norm with gates; the others are noted in `left`."""
    gated = norms | {name for name, module in model.named_modules() if isinstance(module, SparseBatchNorm)}
    for site in places:
        if site.through & gated:
            left[site.layer] = f"its inputs come through '{min(site.through & gated)}', which has gates"
    return [site for site in places if not site.through & gated]
