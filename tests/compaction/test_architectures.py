"""Half-dead networks of many architectures are compacted exactly; a quick part of what the table in the docs shows."""

import pytest
import torch

from tests.compaction.architectures import ARCHITECTURES, examine
from tests.compaction.architectures.report import PAGE, documented, read
from tests.compaction.architectures.trial import macs
from tests.compaction.oracle import live_macs

QUICK = [name for name, architecture in ARCHITECTURES.items() if architecture.quick]
TIGHT = 1.05
RECORDED = {line.zero.name: line for line in read()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("name", QUICK)
def test_a_half_dead_network_becomes_small(name: str, shifts: bool) -> None:
    result = examine(ARCHITECTURES[name], shifts=shifts)
    recorded = RECORDED[name].constant if shifts else RECORDED[name].zero
    assert not result.problem or recorded.problem
    assert result.ratio <= TIGHT or recorded.ratio > TIGHT


def test_the_table_in_the_docs_is_that_of_the_record() -> None:
    page = PAGE.read_text()
    assert documented(page, read()) == page
    assert set(RECORDED) == set(ARCHITECTURES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["Attention written by hand, four heads", "ConvLSTM", "Convolutions and a GRU", "GAN generator"]
)
def test_the_oracle_counts_as_the_meter_does(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = architecture.made()
    assert live_macs(model, architecture.inputs).whole == macs(model, architecture.inputs(0))


def test_the_oracle_knows_what_is_live() -> None:
    """Two of five channels are scaled by zero, one of three inputs of the last layer is not read."""
    torch.manual_seed(0)
    net = (
        torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
        .double()
        .eval()
    )
    net[1].weight.data[:2] = 0
    net[3].weight.data[:, 4] = 0
    found = live_macs(
        net, lambda seed: (torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),)
    )
    assert found.by_module == {"0": 3 * 4 * 2, "3": 3 * 2 * 2}
    assert found.whole == 3 * (20 + 10)
