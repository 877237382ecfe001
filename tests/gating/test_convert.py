"""One batch norm made sparse: values, statistics, flags and hooks."""

import warnings

import pytest
import torch
from torch import nn

from diffsparse import SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d, SparsityWarning
from diffsparse.gating.norms import make_sparse
from diffsparse.nn import SparseBatchNorm
from diffsparse.nn.batchnorm import SyncStatistics


def trained(kind=nn.BatchNorm1d, features=6, **options):
    torch.manual_seed(0)
    norm = kind(features, **options)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        if tensor is not None:
            tensor.detach().normal_()
    if norm.running_var is not None:
        norm.running_var.uniform_(0.5, 2)
        norm.num_batches_tracked.fill_(17)
    return norm


def close(result, expected, tolerance=1e-5):
    scale = expected.abs().max().item()
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("plain", "sparse", "shape"),
    [
        (nn.BatchNorm1d, SparseBatchNorm1d, (5, 6)),
        (nn.BatchNorm2d, SparseBatchNorm2d, (5, 6, 2, 2)),
        (nn.BatchNorm3d, SparseBatchNorm3d, (5, 6, 2, 2, 2)),
        (nn.SyncBatchNorm, SparseBatchNorm, (5, 6, 2)),
    ],
)
@pytest.mark.parametrize("train", [True, False])
def test_keeps_the_function(plain, sparse, shape, train):
    norm = trained(plain).train(train)
    layer = make_sparse("bn", norm, None, None)
    assert type(layer) is sparse
    assert (norm.weight < 0).any()
    x = torch.randn(shape)
    close(layer(x), trained(plain).train(train)(x))
    if plain is nn.SyncBatchNorm:
        assert isinstance(layer.statistics, SyncStatistics)


@pytest.mark.parametrize(
    "options",
    [
        {"affine": False},
        {"bias": False},
        {"track_running_stats": False},
        {"affine": False, "track_running_stats": False},
        {"momentum": None},
        {"eps": 0.1},
    ],
    ids=str,
)
def test_keeps_the_options(options):
    norm = trained(**options)
    layer = make_sparse("bn", norm, None, None)
    assert layer.affine == (norm.bias is not None)
    assert (layer.eps, layer.momentum, layer.track_running_stats) == (norm.eps, norm.momentum, norm.track_running_stats)
    twin, x = trained(**options), torch.randn(9, 6)
    for _ in range(2):
        close(layer(x), twin(x))
    close(layer.eval()(x), twin.eval()(x))


def test_keeps_statistics():
    layer = make_sparse("bn", trained(), None, None)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(layer, key), getattr(trained(), key))
    assert sum("running_mean" in key for key in layer.state_dict()) == 1


def test_a_start_value_sets_gates_and_clears_shifts():
    layer = make_sparse("bn", trained(), 0.5, 0.1)
    assert layer.gate().tolist() == pytest.approx([0.5] * 6)
    assert layer.bias.tolist() == [0] * 6
    assert layer.gate.rgf == 0.1
    assert torch.equal(layer.running_mean, trained().running_mean)


@pytest.mark.parametrize("start", [None, 0.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_keeps_the_dtype_with_gates_in_float32_or_wider(dtype, start):
    layer = make_sparse("bn", trained(dtype=dtype), start, None)
    assert layer.bias.dtype == layer.running_mean.dtype == dtype
    assert layer.gate.alpha.dtype == torch.promote_types(dtype, torch.float32)
    x = torch.randn(9, 6, dtype=dtype)
    if start is None:
        close(layer.eval()(x), trained(dtype=dtype).eval()(x), 0.02 if dtype == torch.bfloat16 else 1e-5)
    assert layer.train()(x).dtype == dtype


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_keeps_requires_grad(frozen):
    norm = trained()
    getattr(norm, frozen).requires_grad_(False)
    layer = make_sparse("bn", norm, None, None)
    gate = [p.requires_grad for p in layer.gate.parameters()]
    assert gate == [frozen != "weight"] * 2
    assert layer.bias.requires_grad == (frozen != "bias")


@pytest.mark.parametrize("train", [True, False])
def test_keeps_the_training_flag(train):
    layer = make_sparse("bn", trained().train(train), None, None)
    assert [module.training for module in layer.modules()] == [train] * 3


def test_keeps_hooks_and_their_handles():
    norm, seen = trained(), []
    handles = [
        norm.register_forward_hook(lambda *_: seen.append("after")),
        norm.register_forward_pre_hook(lambda *_, **__: seen.append("before"), with_kwargs=True),
        norm.register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    layer = make_sparse("bn", norm, None, None)
    x = torch.randn(5, 6, requires_grad=True)
    layer(x).sum().backward()
    assert seen == ["before", "after", "backward"]
    for handle in handles:
        handle.remove()
    layer(x).sum().backward()
    assert len(seen) == 3


def zero_scales():
    norm = trained()
    norm.weight.detach()[[1, 3, 4]] = 0
    norm.bias.detach()[4] = 0
    return norm


def test_warns_of_shifts_that_are_lost():
    with pytest.warns(SparsityWarning, match=r"2 channel\(s\) of 'layer1\.bn' have a shift and a scale of zero"):
        layer = make_sparse("layer1.bn", zero_scales(), None, None)
    x = torch.randn(5, 6)
    y, expected = layer(x), zero_scales()(x)
    assert (y[:, [1, 3, 4]] == 0).all()
    close(y[:, [0, 2, 5]], expected[:, [0, 2, 5]])


def test_zero_scale_without_shift_is_silent_and_exact():
    def norm():
        result = zero_scales()
        result.bias.detach()[[1, 3]] = 0
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = make_sparse("bn", norm(), None, None)
    x = torch.randn(5, 6)
    close(layer(x), norm()(x))


def test_all_zero_scales_start_dead():
    norm = trained()
    norm.weight.detach().zero_()
    norm.bias.detach().zero_()
    assert (make_sparse("bn", norm, None, None).gate() == 0).all()


def test_warns_of_steep_shifts_but_keeps_the_output():
    def norm():
        result = trained()
        result.weight.detach()[2] = 1e-9
        result.bias.detach()[2] = 0.3
        return result

    with pytest.warns(SparsityWarning, match=r"1 channel\(s\) of 'bn' have a shift more than 10000 times"):
        layer = make_sparse("bn", norm(), None, None)
    x = torch.randn(5, 6)
    close(layer(x), norm()(x))
    torch.testing.assert_close(layer(x)[:, 2], torch.full((5,), 0.3), atol=1e-5, rtol=0)
    assert torch.isfinite(layer.bias).all()


def test_a_quotient_beyond_half_precision_drops_the_channel():
    norm = trained(dtype=torch.float16)
    norm.weight.detach()[:3] = torch.tensor([1e-6, 1e-6, 0.5])
    norm.bias.detach()[:3] = torch.tensor([0.5, 0.0, 0.25])
    with pytest.warns(SparsityWarning, match=r"1 channel\(s\) of 'bn' have a shift and .* torch\.float16 cannot hold"):
        layer = make_sparse("bn", norm, None, None)
    assert torch.isfinite(layer.bias).all()
    assert (layer.gate() == 0).tolist() == [True, *[False] * 5]
    scale, shift = layer.scale_and_shift()
    torch.testing.assert_close(scale[1:], norm.weight[1:].float(), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(shift[1:], norm.bias[1:].float(), rtol=2e-3, atol=1e-6)


def test_a_quotient_beyond_float32_drops_the_channel():
    norm = trained()
    norm.weight.detach().mul_(1e-35)
    norm.bias.detach().fill_(1e5)
    with pytest.warns(SparsityWarning, match=r"6 channel\(s\) of 'bn' have a shift and .* torch\.float32 cannot hold"):
        layer = make_sparse("bn", norm, None, None)
    assert torch.isfinite(layer.bias).all()
    assert not layer.gate().any()


def with_scales(*scales):
    norm = nn.BatchNorm1d(len(scales))
    norm.weight.detach().copy_(torch.tensor(scales))
    return norm


def test_warns_of_scales_that_the_gate_cannot_take():
    with pytest.warns(SparsityWarning, match=r"3 channel\(s\) of 'bn' have a scale that torch\.float32 cannot tell"):
        make_sparse("bn", with_scales(1e30, 1e-5, 1.0, 1.0), None, None)


@pytest.mark.parametrize("scales", [(1.0, 1e-9, 1e-30, 0.0), (1e-4, 1e-12, 1e-5), (100.0, 0.01, -1.0), (1e30, 5e29)])
def test_scales_that_decayed_or_keep_together_are_silent(scales):
    norm = with_scales(*scales)
    layer = make_sparse("bn", norm, None, None)
    assert (layer.gate() - norm.weight).abs().max() <= 1e-6 * norm.weight.abs().max()
