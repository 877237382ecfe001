"""Batch statistics alone, and their synchronised form in a single process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from diffsparse import SparseBatchNorm2d
from diffsparse.nn.batchnorm import BatchStatistics, SyncStatistics


@pytest.fixture
def world_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def data(seed=0):
    return torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 1


def norms(**options):
    """Synchronised and ordinary, both without an affine map."""
    options = {"affine": False, "dtype": torch.float64, **options}
    return SyncStatistics.of(nn.SyncBatchNorm(4, **options)), nn.BatchNorm2d(4, **options)


def test_is_a_batch_norm_to_pytorch():
    statistics = BatchStatistics(4)
    assert isinstance(statistics, nn.modules.batchnorm._BatchNorm)
    assert not list(statistics.parameters())
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(statistics), nn.SyncBatchNorm)


@pytest.mark.parametrize("dims", [2, 3, 4, 5, 6])
def test_any_number_of_dimensions(dims):
    x = torch.randn(5, 4, *[3] * (dims - 2), dtype=torch.float64)
    y = BatchStatistics(4, dtype=torch.float64)(x).transpose(0, 1).reshape(4, -1)
    torch.testing.assert_close(y.mean(1), torch.zeros(4, dtype=x.dtype))
    torch.testing.assert_close(y.var(1, unbiased=False), torch.ones(4, dtype=x.dtype), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("momentum", "shares"), [(0.3, [0.3, 0.3, 0.3]), (None, [1, 1 / 2, 1 / 3])])
def test_advance_counts_and_gives_the_share_of_the_batch(momentum, shares):
    statistics = BatchStatistics(4, momentum=momentum)
    assert [statistics.advance() for _ in range(3)] == pytest.approx(shares)
    assert statistics.num_batches_tracked == 3
    statistics.eval().advance()
    assert statistics.num_batches_tracked == 3


def test_uses_batch_in_training_or_without_running_statistics():
    statistics = BatchStatistics(4)
    assert statistics.uses_batch()
    assert not statistics.eval().uses_batch()
    assert BatchStatistics(4, track_running_stats=False).eval().uses_batch()


def test_without_a_process_group_it_is_an_ordinary_batch_norm():
    sync, plain = norms()
    for seed in range(2):
        torch.testing.assert_close(sync(data(seed)), plain(data(seed)))
    torch.testing.assert_close(sync.running_var, plain.running_var)


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.5}], ids=str)
def test_a_world_of_one_works_on_cpu(options):
    sync, plain = norms(**options)
    for seed in range(3):
        mine, reference = data(seed).requires_grad_(), data(seed).requires_grad_()
        y, expected = sync(mine), plain(reference)
        torch.testing.assert_close(y, expected)
        (y**3).sum().backward()
        (expected**3).sum().backward()
        torch.testing.assert_close(mine.grad, reference.grad)
    assert (sync.running_mean is None) == (plain.running_mean is None)
    for mine, reference in zip(sync.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, reference)
    torch.testing.assert_close(sync.eval()(data(7)), plain.eval()(data(7)))


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("affine", [True, False])
def test_a_converted_layer_computes_the_same(affine):
    torch.manual_seed(0)
    layer = SparseBatchNorm2d(4, affine=affine, dtype=torch.float64)
    if affine:
        layer.bias.detach().normal_()
    expected = layer(data())
    mean = layer.running_mean.clone()
    layer.reset_running_stats()
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    assert isinstance(converted.statistics, SyncStatistics)
    # DDP refuses these on CPU
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in converted.modules())
    torch.testing.assert_close(converted(data()), expected)
    torch.testing.assert_close(converted.running_mean, mean)
    again = nn.SyncBatchNorm.convert_sync_batchnorm(converted.eval())
    assert not again.statistics.training
    assert torch.equal(again.running_mean, mean)


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.5}], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_global_moments_are_those_of_a_batch_norm(monkeypatch, options, affine):
    """The gloo path itself, with its collectives, in a world that claims to be larger than it is."""
    sync, plain = norms(**options)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    weight = torch.tensor([0.5, 0.0, -1.0, 2.0], dtype=torch.float64) if affine else None
    bias = torch.tensor([1.0, 0.0, -1.0, 0.3], dtype=torch.float64) if affine else None
    for seed in range(3):
        mine, reference = data(seed).requires_grad_(), data(seed).requires_grad_()
        y, expected = sync(mine, weight, bias), plain(reference)
        if affine:
            expected = expected * weight.view(1, 4, 1, 1) + bias.view(1, 4, 1, 1)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad((o**3).sum(), i)[0] for o, i in ((y, mine), (expected, reference)))
        )
    for mine, reference in zip(sync.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, reference)
    assert sync.float()(data().bfloat16()).dtype == torch.bfloat16
