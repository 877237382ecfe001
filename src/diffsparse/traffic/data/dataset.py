"""Traffic as a data set: past speeds of every node in, the next speed of every node out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.data.dataset import DataSet, DataSummary
from diffsparse.errors import SparsityError
from diffsparse.traffic.data.parts import TrafficPart, split
from diffsparse.traffic.data.reading import Speeds

HISTORY = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficDataSet(DataSet):
    """A data set of speeds with the map of its nodes."""

    train: TrafficPart
    """The windows to train on."""
    validation: TrafficPart
    """The windows to choose settings with."""
    test: TrafficPart
    """Windows that training never sees."""
    task: str = "forecasting"
    adjacency: Tensor
    """(nodes, nodes) bool, the given map: True where two nodes are linked, never on the diagonal."""
    mean: float
    """Of the known speeds of the training part."""
    std: float
    """Of the same."""
    node_names: tuple[str, ...]
    """What each node is called."""
    positions: Tensor | None = None
    """(nodes, 2), where the nodes lie, if that is known."""

    def summary(self) -> DataSummary:
        """Windows, nodes and missing speeds of each part, and the links of the map."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        history, nodes = map(str, self.input_shape)
        return DataSummary(
            headings=("windows", "steps seen", "nodes", "speeds missing"),
            rows={
                name: (f"{len(part):,}", history, nodes, f"{(part.known == 0).double().mean().item():.1%}")
                for name, part in parts.items()
            },
            caption=f"{int(self.adjacency.sum()):,} links on the map",
        )


def traffic_data(
    name: str, speeds: Speeds, adjacency: Tensor, *, history: int = HISTORY, positions: Tensor | None = None
) -> TrafficDataSet:
    """The data set of these speeds: 80 % of the steps to train on, the last 10 % of them for validation, 20 % to test.

    Args:
        name: what to call it.
        speeds: as read by `read_speeds`, perhaps `resampled`.
        adjacency: the given map, (nodes, nodes), as read by `read_adjacency` or `read_distances`.
        history: how many past steps a model sees.
        positions: (nodes, 2), where the nodes lie, if that is known.

    Example:
        >>> speeds = Speeds(values=torch.full((200, 2), 50.0).double(), names=("bridge", "market"))
        >>> data = traffic_data("two roads", speeds, torch.tensor([[False, True], [True, False]]))
        >>> data.input_shape, data.num_outputs, len(data.train), len(data.validation), len(data.test)
        ((8, 2), 2, 136, 8, 32)
    """
    nodes = len(speeds.names)
    if adjacency.shape != (nodes, nodes):
        raise SparsityError(f"{name}: the speeds are of {nodes} nodes, the map is {tuple(adjacency.shape)}")
    parts = split(speeds, history)
    return TrafficDataSet(
        name=name,
        train=parts.train,
        validation=parts.validation,
        test=parts.test,
        input_shape=(history, nodes),
        num_outputs=nodes,
        adjacency=adjacency.bool() & ~torch.eye(nodes, dtype=torch.bool),
        mean=parts.mean,
        std=parts.std,
        node_names=speeds.names,
        positions=positions,
    )
