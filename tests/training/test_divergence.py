from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from diffsparse import SparsityError
from diffsparse.methods import Method
from diffsparse.training import DivergenceError, Optimisation
from diffsparse.training.evaluate import find_divergence, non_finite_parameter
from diffsparse.training.snapshot import Snapshot
from tests.training.examples import STEPS, Net, Smooth, recipe, trainer


class Breaking(nn.Module):
    """The identity in so many training steps, from then on infinite."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls -= self.training
        return x if self.calls >= 0 else x + torch.inf


def breaking(calls: int) -> nn.Module:
    net = Smooth()
    net.layers.insert(3, Breaking(calls))
    return net


def test_names_epoch_layer_and_last_checkpoint(tmp_path: Path) -> None:
    its_trainer = trainer(tmp_path, breaking(STEPS + 2), Method(), recipe(epochs=2))
    with pytest.raises(DivergenceError) as caught:
        its_trainer.run()
    message = str(caught.value)
    assert "the loss is nan in epoch 2, step 3: the output of layer 'layers.3' is not finite" in message
    assert f"the last checkpoint is '{tmp_path}/checkpoints/1-train-00001-0000000.safetensors'" in message
    # the weights of the last good step are still there
    assert non_finite_parameter(its_trainer.phase.model) is None
    assert isinstance(caught.value, SparsityError)


def test_before_the_first_epoch_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match=r"in epoch 1, step 2: .*'layers.3'.*; there is no checkpoint yet"):
        trainer(tmp_path, breaking(1), Method(), recipe(epochs=2)).run()


def test_a_learning_rate_far_too_high(tmp_path: Path) -> None:
    settings = Optimisation(learning_rate=1e12, schedule="constant")
    with pytest.raises(DivergenceError, match=r"the loss is .* in epoch 1, step \d+: .*layer.*; there is no") as caught:
        trainer(tmp_path, Smooth(), Method(), recipe(epochs=1, optimisation=settings)).run()
    assert "A smaller learning rate, a warm-up or clip may help" in str(caught.value)


def test_an_exploding_loss_is_no_training_even_while_it_is_a_number(tmp_path: Path) -> None:
    settings = Optimisation(learning_rate=1e7, momentum=0.0, schedule="constant", weight_decay=0.0)
    with pytest.raises(DivergenceError, match=r"the loss is \d.* in epoch 1, step 2: the largest output, .* of layer"):
        trainer(tmp_path, nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), Method(), recipe(optimisation=settings)).run()


@pytest.mark.parametrize("step", [STEPS, 2 * STEPS])
def test_weights_lost_by_the_last_update_of_an_epoch_get_no_checkpoint(step: int, tmp_path: Path) -> None:
    net = Smooth()
    seen = []

    def lost(gradient: Tensor) -> Tensor:
        seen.append(1)
        return gradient * torch.inf if len(seen) == step else gradient

    net.layers[3].weight.register_hook(lost)
    its_trainer = trainer(tmp_path, net, Method(), recipe(epochs=3))
    with pytest.raises(
        DivergenceError,
        match=rf"weights are no longer finite in epoch {step // STEPS}, step 6: parameter 'layers.3.weight' is not",
    ):
        its_trainer.run()
    for path in its_trainer.context.folder.snapshots():
        assert all(bool(tensor.isfinite().all()) for tensor in Snapshot.read(path).tensors.values())
    assert len(its_trainer.context.log.records()) == step // STEPS - 1


def test_find_divergence_prefers_a_parameter_that_is_lost() -> None:
    net = Net()
    net.bn2.bias.detach()[3] = torch.nan
    assert find_divergence(net, torch.zeros(2, 1, 6, 6)) == "parameter 'bn2.bias' is not finite"
    assert non_finite_parameter(net) == "bn2.bias"


def test_find_divergence_finds_the_first_layer_that_breaks_and_the_largest_otherwise() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2))
    nn.init.constant_(net[0].weight, 1e30)
    nn.init.constant_(net[2].weight, 1e30)
    assert find_divergence(net, torch.ones(1, 2)) == "the output of layer '2' is not finite"
    nn.init.constant_(net[2].weight, 1.0)
    assert find_divergence(net, torch.full((1, 2), 0.1)) == "the largest output, 4e+29, is that of layer '2'"
    assert not any(module._forward_hooks for module in net.modules())
