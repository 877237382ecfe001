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


class Twice(nn.Module):
    """A layer whose second call reads an input that is zero in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        half = torch.cat([x[:, :2], torch.zeros_like(x[:, 2:])], 1)
        return torch.cat([self.layer(half), self.layer(x)], 1)


def test_the_least_of_a_layer_is_one_width_for_all_calls() -> None:
    live = live_macs(Twice().double().eval(), drawn(1, 4))  # type: ignore[arg-type]
    assert live.by_module == {"first": 4 * 4, "layer": 2 * 3 + 4 * 3}
    assert live.least == 4 * 4 + 2 * 4 * 3


class Blocks(nn.Module):
    """Three products at once: of one, of three and of no live terms."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Buffer(torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])[:, None])

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.mask) @ x.mT


def test_the_least_of_a_product_has_blocks_of_one_size() -> None:
    live = live_macs(Blocks().double().eval(), drawn(3, 2, 4))  # type: ignore[arg-type]
    assert (live.live, live.least, live.whole) == ((1 + 3) * 4, 2 * 3 * 4, 3 * 4 * 4)
