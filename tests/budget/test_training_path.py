"""What runs in training mode only is told before the training begins, not when the network is small."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds


class TwoHeads(nn.Module):
    """A second head, which only training has, reads the stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head, self.second = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.stem(x)
        logits: Tensor = self.head(self.body(y).mean((2, 3)))
        return (logits, self.second(y.mean((2, 3)))) if self.training else logits


class SkipsInTraining(TwoHeads):
    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        logits: Tensor = self.head((y if self.training else self.body(y)).mean((2, 3)))
        return logits


class NeverTrains(TwoHeads):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("only for use")
        logits = super().forward(x)
        assert isinstance(logits, Tensor)
        return logits


@pytest.mark.parametrize("make", [TwoHeads, SkipsInTraining])
def test_a_branch_that_only_training_has(make: type[nn.Module]) -> None:
    model = ds.sparsify(make(), start=1.0)
    with pytest.raises(ds.SparsityError, match=r"would not train any more.*only="):
        ds.Budget(model, torch.randn(2, 3, 8, 8), macs=0.5, steps=10)


def test_without_the_gates_that_it_reads_all_is_well() -> None:
    model, x = ds.sparsify(TwoHeads(), start=1.0), torch.randn(8, 3, 8, 8)
    budget = ds.Budget(model, x[:2], macs=0.6, steps=6, only="body.*")
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.05)
    for step in range(1, 7):
        first, second = model(x)
        optimizer.zero_grad()
        (first.square().mean() + second.square().mean() + budget.penalty()).backward()
        optimizer.step()
        with nullcontext() if budget.due != step else pytest.warns(ds.SparsityWarning, match="second"):
            budget.step(optimizer)
    assert budget.finished
    assert model.second.in_features == 8


def test_a_model_that_never_trains_on_the_example_is_left_to_its_user() -> None:
    model = ds.sparsify(NeverTrains(), start=1.0)
    assert not ds.Budget(model, torch.randn(2, 3, 8, 8), macs=0.5, steps=10).finished


def test_nothing_is_left_behind_in_the_model() -> None:
    model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), start=1.0)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    ds.Budget(model.eval(), torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), macs=0.5, steps=10)
    assert not model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
