"""A small gated network, data and a budget that every framework trains in its tests."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import diffsparse as ds

STEPS, BATCH = 24, 16
"""Steps of the optimiser, in three epochs of eight; the network becomes small after half of them."""


class Net(nn.Module):
    """Returns a dictionary if labels are given, as the Trainer of transformers wants it."""

    def __init__(self) -> None:
        super().__init__()
        # a bias in front of a batch norm gets rounding errors for gradients, and Adam makes steps of them
        self.first, self.norm, self.last = nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 2)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        logits = self.last(F.relu(self.norm(self.first(x))))
        return logits if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def dataset(samples: int = 8 * BATCH) -> TensorDataset:
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def batches(size: int = BATCH) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(dataset(), batch_size=size)


def made(**settings: float) -> tuple[Net, ds.Budget]:
    """A fresh network and its budget."""
    torch.manual_seed(0)
    net = ds.sparsify(Net(), start=1.0)
    return net, ds.Budget(net, torch.randn(2, 8), **{"macs": 0.5, "steps": STEPS} | settings)  # type: ignore[arg-type]


def plain_loop(clip: float | None = None, **settings: float) -> tuple[Net, ds.Budget]:
    """What every framework has to give, in a plain loop with the penalty in the loss."""
    net, budget = made(**settings)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(3):
        for x, y in batches():
            loss = F.cross_entropy(net(x), y) + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            budget.step(optimizer)
    return net, budget


def assert_same(one: nn.Module, other: nn.Module) -> None:
    """Both networks hold the same numbers, to the last bit."""
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
