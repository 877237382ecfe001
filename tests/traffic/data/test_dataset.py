import pytest
import torch

from diffsparse import SparsityError
from diffsparse.data.dataset import DataSet
from diffsparse.traffic.data import Speeds, traffic_data

SPEEDS = Speeds(values=torch.rand(200, 3).double() + 30, names=("a", "b", "c"))


def test_data_set_says_what_a_model_must_know() -> None:
    weights = torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0.1, 1]])
    places = torch.rand(3, 2)
    data = traffic_data("three", SPEEDS, weights, history=4, positions=places)
    assert isinstance(data, DataSet)
    assert (data.name, data.input_shape, data.num_outputs, data.node_names) == ("three", (4, 3), 3, ("a", "b", "c"))
    assert data.adjacency.tolist() == [[False, True, False], [False, False, False], [False, True, False]]
    assert data.positions is places
    inputs, targets = next(iter(data.test.in_order(7)))
    assert inputs.shape == (7, *data.input_shape)
    assert targets.shape == (7, data.num_outputs)
    training = SPEEDS.values[:144]
    assert data.mean == pytest.approx(training.mean().item())
    assert data.std == pytest.approx(training.std(correction=0).item())


@pytest.mark.parametrize("shape", [(2, 2), (4, 4), (3, 2)])
def test_a_map_of_other_nodes_is_named(shape: tuple[int, int]) -> None:
    with pytest.raises(
        SparsityError, match=rf"three: the speeds are of 3 nodes, the map is \({shape[0]}, {shape[1]}\)"
    ):
        traffic_data("three", SPEEDS, torch.zeros(shape))


def test_the_summary_counts_windows_and_missing_speeds() -> None:
    values = SPEEDS.values.clone()
    values[150:, 0] = 0
    data = traffic_data("three", Speeds(values=values, names=SPEEDS.names), torch.ones(3, 3), history=4)
    summary = data.summary()
    assert summary.headings == ("windows", "steps seen", "nodes", "speeds missing")
    assert summary.rows["train"] == ("140", "4", "3", "0.0%")
    assert summary.rows["test"] == ("36", "4", "3", "33.3%")
    assert list(summary.rows) == ["train", "validation", "test"]
    assert summary.caption == "6 links on the map"
