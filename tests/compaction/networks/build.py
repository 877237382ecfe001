"""From a specification to a network; blocks that do not fit the shape that reaches them are left out."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.compaction.networks.block import FLAT, SPATIAL, MisfitError, Shape
from tests.compaction.networks.draw import Draw
from tests.compaction.networks.net import Net
from tests.compaction.networks.specification import BlockSpec, Spec
from tests.compaction.networks.weights import randomise, sparsify_chosen


def build(spec: Spec) -> Net:
    """The network of a specification, in float64 and eval mode."""
    net, shape = Net(spec.returns), _shape(spec)
    for entry in spec.blocks:
        made = _fitting(entry, spec, shape)
        if made is not None:
            shape = made[1]
            net.blocks.append(made[0])
            net.taps.append(entry["tap"])
    sparsify_chosen(net)
    return net.train(spec.training)


def options(spec: Spec) -> Spec:
    """The same specification with everything that its blocks draw written out; blocks that do not fit left out."""
    blocks, shape = [], _shape(spec)
    for entry in spec.blocks:
        made = _fitting(entry, spec, shape)
        if made is not None:
            shape = made[1]
            blocks.append({**entry, **made[2]})
    return Spec(**{**vars(spec), "blocks": tuple(blocks)})


def inputs(spec: Spec, net: Net, *, batch: int = 2, grow: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
    """Random inputs; `grow` adds to every spatial size."""
    generator = torch.Generator().manual_seed(1000 * spec.seed + seed)
    shape = (batch, *_shape(spec)[1:2], *(n + grow for n in _shape(spec)[2:]))
    count = 2 if net.takes_two else 1
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count))


def _shape(spec: Spec) -> Shape:
    return (2, spec.channels, *(spec.size + (i == 1) for i in range(spec.dims)))


def _fitting(entry: BlockSpec, spec: Spec, shape: Shape) -> tuple[nn.Module, Shape, Any] | None:
    """The block of `entry`, the shape behind it and what it drew; None if it does not fit."""
    kinds = SPATIAL if len(shape) > 2 else FLAT
    if entry["kind"] not in kinds or math.prod(shape[1:]) > 3000:
        return None
    draw = Draw({**entry, "channels": spec.channels}, len(shape) - 2)
    generator = torch.Generator().manual_seed(entry["seed"])
    state = torch.random.get_rng_state()
    try:
        made = kinds[entry["kind"]](draw, shape).double().eval()
        given = torch.randn(shape, generator=generator, dtype=torch.float64)
        two = (torch.randn(_shape(spec), dtype=torch.float64),) if getattr(made, "takes_second", False) else ()
        with torch.no_grad():
            after = tuple(made(given, *two).shape)
    except (MisfitError, RuntimeError, ValueError):
        return None
    finally:
        torch.random.set_rng_state(state)
    if math.prod(after) == 0:
        return None
    randomise(made, entry["cut"], generator)
    return made, after, draw.made
