"""What the oracle calls live, on networks where one can tell."""

import torch
from torch import Tensor, nn

from tests.compaction.oracle import live_macs


class Positions(nn.Module):
    """Adds a projection of a table that is as long as the input."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(1, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        y: Tensor = self.head(torch.tanh(x + self.project(steps)))
        return y


def drawn(*shape: int) -> "object":
    def draw(seed: int) -> tuple[Tensor, ...]:
        return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),)

    return draw


def test_what_is_made_of_a_table_of_positions_is_live() -> None:
    live = live_macs(Positions().double().eval(), drawn(2, 5, 6))  # type: ignore[arg-type]
    assert live.by_module == {"project": 5 * 6, "head": 2 * 5 * 6 * 2}


def test_what_is_made_of_stored_numbers_is_dead() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double().eval()
    model[0].weight.data[1:] = 0
    model[0].bias.data.fill_(1.0)
    live = live_macs(model, drawn(2, 6))  # type: ignore[arg-type]
    assert live.by_module == {"0": 2 * 6, "2": 2 * 1 * 3, "4": 2 * 3 * 2}
