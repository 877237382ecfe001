"""Statistics of an averaged network are measured, and then it is as good as the model, where plain averages fail."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import diffsparse as ds
from tests.training.examples import Net

X = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (model.eval()(x).argmax(1) == y).double().mean().item()


def test_a_gated_model_is_averaged_well_where_pytorch_fails() -> None:
    data = ds.data.open_data("digits", augment=False)
    torch.manual_seed(0)
    model = ds.sparsify(ds.models.create("preresnet8-0.5", 10, in_channels=1), start=0.5)
    penalty, epochs, batch = ds.Penalty(model, ds.L1(), 0.02), 10, 64
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(data.train) // batch))
    average = ds.MovingAverage(model, 0.98)
    plain = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)
    for epoch in range(epochs):
        for x, y in data.train.shuffled(batch, seed=0, epoch=epoch):
            loss = F.cross_entropy(model(x), y) + penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            average.update(model)
            plain.update_parameters(model)
    test = next(data.test.in_order(1000))
    average.calibrate((x for x, _ in data.train.shuffled(batch, seed=1, epoch=0)), 5)
    own = accuracy(model, *test)
    assert own > 0.95
    assert accuracy(plain, *test) < own - 0.1
    assert accuracy(average.model, *test) > own - 0.01
    assert ds.sparsity(average.model).channels == ds.sparsity(model).channels
    assert ds.sparsity(model).channels.fraction > 0.1


def moments(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of the inputs of the second batch norm when the first one normalises by the batch."""
    with torch.no_grad():
        out = model.conv1(x)
        normal = (out - out.mean((0, 2, 3), keepdim=True)) / (out.var((0, 2, 3), False, keepdim=True) + 1e-5).sqrt()
        scale, shift = model.bn1.scale_and_shift()
        y = model.conv2(F.relu(normal * scale[:, None, None] + shift[:, None, None]))
        return y.mean((0, 2, 3)), y.var((0, 2, 3))


def test_measures_what_the_network_does_on_the_batches() -> None:
    torch.manual_seed(0)
    model = ds.sparsify(Net(), start=0.5)
    model(X)
    average = ds.MovingAverage(model)
    average.model.eval()
    random = torch.get_rng_state()
    average.calibrate([X[:20], X[20:], X * 100], count=2)
    assert torch.equal(torch.get_rng_state(), random)
    (mean1, var1), (mean2, var2) = (moments(average.model, part) for part in (X[:20], X[20:]))
    norm = average.model.bn2
    torch.testing.assert_close(norm.running_mean, (mean1 + mean2) / 2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, (var1 + var2) / 2, rtol=1e-4, atol=1e-5)
    assert norm.num_batches_tracked == 1
    assert norm.momentum == 0.1
    assert not any(module.training for module in average.model.modules())
    # updates go on from there
    model(X)
    average.update(model)
    expected = (0.1 * ((var1 + var2) / 2 + 1e-5).log() + 0.9 * (model.bn2.running_var + 1e-5).log()).exp()
    torch.testing.assert_close(average.model.bn2.running_var, expected, rtol=1e-4, atol=1e-5)


def test_frozen_and_idle_norms_keep_their_statistics() -> None:
    torch.manual_seed(0)
    model = ds.sparsify(Net(), start=0.5)
    model.idle = nn.BatchNorm1d(3)
    model.idle.running_var.fill_(7.0)
    average = ds.MovingAverage(model)
    model.bn1.eval()
    average.update(model)
    before = copy.deepcopy(average.model.state_dict())
    average.calibrate([X])
    after = average.model.state_dict()
    for name in ("bn1.statistics.running_mean", "bn1.statistics.running_var", "idle.running_mean", "idle.running_var"):
        torch.testing.assert_close(after[name], before[name])
    assert not torch.allclose(after["bn2.statistics.running_var"], before["bn2.statistics.running_var"])


def test_inputs_may_be_tuples_and_dictionaries_and_an_error_leaves_things_alone() -> None:
    torch.manual_seed(0)
    model = ds.sparsify(Net(), start=0.5)
    results = []
    for batch in (X, (X,), {"x": X}):
        average = ds.MovingAverage(model)
        torch.manual_seed(0)
        average.calibrate([batch])
        results.append(average.model.bn2.running_var)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    average = ds.MovingAverage(model)
    before = copy.deepcopy(average.state_dict())
    with pytest.raises(ds.SparsityError, match="does not run on"):
        average.calibrate([X, torch.zeros(2, 5, 6, 6)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in average.state_dict().items())
    assert average.model.bn2.momentum == 0.1
