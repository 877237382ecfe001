"""Where gates can go: inputs of layers that nobody else reads, and outputs of residual branches."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from diffsparse.errors import SparsityError
from diffsparse.example import Example, tensors_in
from diffsparse.gating.flow import Flow, Producer, Reader
from diffsparse.gating.operations import written_out
from diffsparse.gating.probe import arrivals, block_size
from diffsparse.nn import Side
from diffsparse.undisturbed import undisturbed

Kind = Literal["channels", "neurons", "heads", "layers"]

RETURNED = "the model returns what it reads, such as a key-value cache (use_cache=False leaves that out)"


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place for a gate."""

    kind: Kind
    layer: str
    """Name of the layer."""
    side: Side
    entries: int
    block: int
    """Inputs of the layer per entry."""
    input_dim: int
    """The dimension of its weight that holds inputs."""
    through: frozenset[str]
    """Batch norms on the way to these inputs, which may have gates."""
    importance: Tensor
    """How large what each entry adds is, on the example."""


@dataclass(frozen=True)
class Sites:
    """What can be gated in a model, and why the rest cannot."""

    found: list[Site]
    left: dict[str, str]
    """Layers whose inputs get no gate, with the reason."""


def find_sites(model: nn.Module, example: Example) -> Sites:
    """Run `model` a few times on the example and find out; the model is left as it is."""
    with undisturbed(model, device=example.device), written_out():
        flow = Flow(model, example.tensors)
        try:
            with flow:
                output = example.run(model)
        except SparsityError as error:
            example.run(model)
            raise SparsityError(
                f"{type(model).__name__} runs on the example, but not while its operations are watched, so that gates "
                f"cannot be placed by it: {error.__cause__}. Without an example, batch norms get gates"
            ) from error
        returned = frozenset().union(*(flow.trace(tensor).producers for tensor in tensors_in(output)))
        search = _Search(model, flow, returned)
        feeds = search.feeds()
        seen = arrivals(model, lambda: example.run(model), feeds, flow.widths)
    for name, reached in seen.items():
        search.add_inputs(name, block_size(flow.readers[name].channels, reached))
    for producer, size in flow.branches.items():
        search.add_outputs(producer, size)
    return search.sites


class _Search:
    def __init__(self, model: nn.Module, flow: Flow, returned: frozenset[Producer]) -> None:
        self.sites = Sites([], {})
        self._model, self._flow, self._returned = model, flow, returned
        names = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
        self._tied = {id(parameter) for _, parameter in model.named_parameters() if names[id(parameter)] > 1}
        self._read_by: dict[Producer, set[str]] = {}
        for name, reader in flow.readers.items():
            for producer in reader.producers:
                self._read_by.setdefault(producer, set()).add(name)

    def feeds(self) -> dict[str, list[Producer]]:
        """Layers whose inputs may be gated, with those who make these inputs and nothing else."""
        feeds = {}
        for name, reader in self._flow.readers.items():
            own = [one for one in reader.producers if self._read_by[one] == {name} and one not in self._returned]
            if reason := self._refusal(name, reader, own):
                self.sites.left[_layer(name)] = reason
            else:
                feeds[name] = sorted(own, key=lambda one: (one.name, one.offset))
        return feeds

    def _refusal(self, name: str, reader: Reader, own: list[Producer]) -> str:
        if reader.turned:
            return "its weights are also used turned round (weight.t()), where they read other channels"
        if reason := self._ungateable(name, reader.input_dim):
            return reason
        shared = [one for one in reader.producers if one not in own]
        if own and all(one.table for one in shared):
            return ""
        if any(self._read_by[one] != {name} for one in shared):
            return "other layers read the same tensor"
        return RETURNED if shared else "no layer computes what it reads"

    def _ungateable(self, name: str, input_dim: int | None) -> str:
        """Why the weights called `name` cannot be gated."""
        owner = self._model.get_submodule(_layer(name))
        if name.rpartition(".")[2] != "weight" or owner._modules:
            return "its weights are no parameter 'weight' of a layer on its own"
        if input_dim is None:
            return "it uses its weights in parts"
        if id(owner._parameters["weight"]) in self._tied:
            return "its weights belong to another layer, too"
        return ""

    def add_inputs(self, name: str, block: int | None) -> None:
        reader, layer = self._flow.readers[name], self._model.get_submodule(_layer(name))
        if block is None or reader.channels // block < 2:
            self.sites.left[_layer(name)] = "its inputs are mixed or normalised together before it reads them"
            return
        assert reader.input_dim is not None
        weight = layer._parameters["weight"]
        assert weight is not None
        kind: Kind = "heads" if reader.attended and block > 1 else "neurons" if weight.dim() == 2 else "channels"
        columns = weight.detach().double().movedim(reader.input_dim, 0).flatten(1).square().sum(1)
        importance = (columns * reader.squares.to(columns)).view(-1, block).sum(1).sqrt()
        self.sites.found.append(
            Site(
                kind=kind,
                layer=_layer(name),
                side="inputs",
                entries=len(importance),
                block=block,
                input_dim=reader.input_dim,
                through=frozenset(reader.norms),
                importance=importance,
            )
        )

    def add_outputs(self, producer: Producer, size: float) -> None:
        reader = self._flow.readers.get(producer.name)
        if producer.table or reader is None or self._ungateable(producer.name, reader.input_dim):
            return
        assert reader.input_dim is not None
        self.sites.found.append(
            Site(
                kind="layers",
                layer=_layer(producer.name),
                side="outputs",
                entries=1,
                block=1,
                input_dim=reader.input_dim,
                through=frozenset(),
                importance=torch.tensor([size], dtype=torch.float64),
            )
        )


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0]
