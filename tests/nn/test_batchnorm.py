"""Sparse batch norm against the ordinary one with weight a and bias a * b."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from diffsparse import SignedGate, SparseBatchNorm1d, SparseBatchNorm2d, SparseBatchNorm3d, SparsityError

CASES = {
    "1d": (SparseBatchNorm1d, nn.BatchNorm1d, (16, 5)),
    "1d-length": (SparseBatchNorm1d, nn.BatchNorm1d, (4, 5, 7)),
    "2d": (SparseBatchNorm2d, nn.BatchNorm2d, (4, 5, 3, 2)),
    "3d": (SparseBatchNorm3d, nn.BatchNorm3d, (3, 5, 2, 3, 2)),
}
OPTIONS = [{}, {"momentum": None}, {"momentum": 0.4}, {"track_running_stats": False}, {"affine": False}, {"eps": 0.3}]
A = torch.tensor([0.7, 0.0, -0.3, 1.5, 0.0], dtype=torch.float64)
B = torch.tensor([0.2, 3.0, -0.8, 0.0, -1.0], dtype=torch.float64)


def pair(sparse_type, plain_type, **options):
    sparse = sparse_type(5, dtype=torch.float64, **options)
    sparse.gate = SignedGate.from_values(A)
    plain = plain_type(5, dtype=torch.float64, **{**options, "affine": True})
    plain.weight.detach().copy_(A)
    plain.bias.detach().zero_()
    if sparse.affine:
        sparse.bias.detach().copy_(B)
        plain.bias.detach().copy_(A * B)
    return sparse, plain


def data(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(shape, generator=generator, dtype=torch.float64) + 0.7


@pytest.mark.parametrize(("sparse_type", "plain_type", "shape"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_the_ordinary_batch_norm(sparse_type, plain_type, shape, options):
    sparse, plain = pair(sparse_type, plain_type, **options)
    for batch in range(3):
        x = data(shape, batch)
        mine, reference = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = sparse(mine), plain(reference)
        torch.testing.assert_close(y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(mine.grad, reference.grad)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        if getattr(plain, key) is None:
            assert getattr(sparse, key) is None
        else:
            torch.testing.assert_close(getattr(sparse, key), getattr(plain, key))
    x = data(shape, 9)
    torch.testing.assert_close(sparse.eval()(x), plain.eval()(x))


def test_starts_at_one_half_or_the_given_value():
    assert SparseBatchNorm2d(6).gate().tolist() == pytest.approx([0.5] * 6)
    layer = SparseBatchNorm2d(6, value=1.0, rgf=0.1)
    assert layer.gate().tolist() == pytest.approx([1.0] * 6)
    assert layer.gate.rgf == 0.1
    assert layer.bias.tolist() == [0] * 6
    assert "6, affine=True" in repr(layer)


@pytest.mark.parametrize("train", [True, False])
def test_a_zero_gate_silences_its_channel_and_its_bias(train):
    layer, _ = pair(SparseBatchNorm2d, nn.BatchNorm2d)
    y = layer.train(train)(data((4, 5, 3, 2)))
    dropped = A == 0
    assert (y[:, dropped] == 0).all()
    (y * data(y.shape, 1)).sum().backward()
    assert (layer.bias.grad[dropped] == 0).all()
    assert (layer.bias.grad[~dropped] != 0).all()


class Operations(TorchDispatchMode):
    def __init__(self, numel):
        super().__init__()
        self.numel, self.full_size = numel, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        outputs = out if isinstance(out, tuple) else (out,)
        if any(isinstance(t, torch.Tensor) and t.numel() >= self.numel for t in outputs):
            self.full_size[func.overloadpacket.__name__] += 1
        return out


@pytest.mark.parametrize("train", [True, False])
def test_one_kernel_forward_and_one_backward(train):
    layer = SparseBatchNorm2d(5).train(train)
    x, upstream = torch.randn(8, 5, 4, 4, requires_grad=True), torch.randn(8, 5, 4, 4)
    with Operations(x.numel()) as forward:
        y = layer(x)
    with Operations(x.numel()) as backward:
        torch.autograd.grad(y, [x, *layer.parameters()], upstream)
    assert list(forward.full_size.values()) == [1]
    assert "batch_norm" in next(iter(forward.full_size))
    kernels = {name: n for name, n in backward.full_size.items() if name not in ("detach", "view", "alias")}
    assert list(kernels.values()) == [1]
    assert "batch_norm_backward" in next(iter(kernels))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_gradcheck(train, affine):
    layer, _ = pair(SparseBatchNorm1d, nn.BatchNorm1d, affine=affine)
    layer.train(train)
    names = [name for name, _ in layer.named_parameters()]

    def call(x, *parameters):
        # fresh buffers: the layer updates its running statistics at every call
        state = {name: b.clone() for name, b in layer.named_buffers()} | dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, state, (x,))

    inputs = [data((6, 5)), *(p.detach().clone() for p in layer.parameters())]
    assert torch.autograd.gradcheck(call, [t.requires_grad_() for t in inputs])


def test_autocast_keeps_gates_in_float32():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), SparseBatchNorm2d(5))
    with torch.autocast("cpu", torch.bfloat16):
        y = model(torch.randn(4, 3, 8, 8))
        assert model[1].gate().dtype == torch.float32
    assert y.dtype == torch.bfloat16
    y.float().square().mean().backward()
    assert all(p.grad.dtype == torch.float32 and torch.isfinite(p.grad).all() for p in model.parameters())
    assert model[1].running_mean.dtype == torch.float32


@pytest.mark.parametrize("train", [True, False])
def test_a_bfloat16_model_works(train):
    model = nn.Sequential(nn.Conv2d(3, 5, 3), SparseBatchNorm2d(5)).train(train)
    x = torch.randn(4, 3, 8, 8)
    expected = copy.deepcopy(model)(x)
    y = model.to(torch.bfloat16)(x.to(torch.bfloat16))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
    y.sum().backward()
    assert torch.isfinite(model[1].gate.alpha.grad).all()


def test_compiles_without_breaks():
    layer, plain = pair(SparseBatchNorm2d, nn.BatchNorm2d)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = data((4, 5, 3, 2))
    torch.testing.assert_close(compiled(x), plain(x))
    compiled(x).square().sum().backward()
    expected = plain(x).square().sum()
    expected.backward()
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad * A)
    torch.testing.assert_close(layer.running_var, plain.running_var)


def test_deepcopy_and_state_dict_round_trip():
    layer, _ = pair(SparseBatchNorm2d, nn.BatchNorm2d)
    layer(data((4, 5, 3, 2)))
    x = data((4, 5, 3, 2), 1)
    expected = layer.eval()(x)
    fresh = SparseBatchNorm2d(5, dtype=torch.float64).eval()
    assert not torch.allclose(fresh(x), expected)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), expected)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), expected)
    twin.gate.alpha.detach().zero_()
    assert torch.equal(layer(x), expected)


def test_update_bn_and_reset_find_it():
    sparse, plain = pair(SparseBatchNorm2d, nn.BatchNorm2d)
    batches = [data((4, 5, 3, 2), seed) for seed in range(4)]
    for layer in (sparse, plain):
        layer(100 * batches[0])
        torch.optim.swa_utils.update_bn(batches, nn.Sequential(layer))
    torch.testing.assert_close(sparse.running_mean, plain.running_mean)
    torch.testing.assert_close(sparse.running_var, plain.running_var)
    sparse.reset_running_stats()
    assert sparse.running_mean.tolist() == [0] * 5
    assert sparse.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (SparseBatchNorm1d, (5,), "expects 2 or 3 dimensions"),
        (SparseBatchNorm1d, (2, 5, 3, 3), "expects 2 or 3 dimensions"),
        (SparseBatchNorm2d, (2, 5, 3), r"SparseBatchNorm2d expects 4 dimensions, got shape \(2, 5, 3\)"),
        (SparseBatchNorm3d, (2, 5, 3, 3), "expects 5 dimensions"),
        (SparseBatchNorm2d, (2, 4, 3, 3), r"expects 5 channels in dimension 1, got shape \(2, 4, 3, 3\)"),
    ],
)
def test_refuses_input_of_the_wrong_shape(layer, shape, message):
    with pytest.raises(SparsityError, match=message):
        layer(5)(torch.zeros(shape))


def test_refuses_no_channels():
    with pytest.raises(SparsityError, match="num_features must be a whole number of at least 1, got 0"):
        SparseBatchNorm2d(0)
    with pytest.raises(SparsityError, match=r"num_features must be a whole number of at least 1, got 2\.5"):
        SparseBatchNorm2d(2.5)


def test_momentum_and_eps_can_be_set():
    (sparse, plain), x = pair(SparseBatchNorm2d, nn.BatchNorm2d), data((4, 5, 3, 2))
    for layer in (sparse, plain):
        layer.momentum, layer.eps = 0.7, 0.2
    assert (sparse.momentum, sparse.eps) == (0.7, 0.2)
    torch.testing.assert_close(sparse(x), plain(x))
    torch.testing.assert_close(sparse.running_mean, plain.running_mean)


@pytest.mark.parametrize("affine", [True, False])
def test_reset_parameters_makes_it_new(affine):
    layer = SparseBatchNorm1d(5, value=0.75, affine=affine)
    new = copy.deepcopy(layer.state_dict())
    for _ in range(2):
        layer(torch.randn(8, 5) + 1)
    for parameter in layer.parameters():
        parameter.detach().add_(0.1)
    layer.reset_parameters()
    assert all(torch.equal(value, new[key]) for key, value in layer.state_dict().items())


def test_can_be_made_on_the_meta_device():
    with torch.device("meta"):
        layer = SparseBatchNorm2d(8)
    assert layer(torch.empty(2, 8, 3, 3, device="meta")).shape == (2, 8, 3, 3)
    layer.to_empty(device="cpu").reset_parameters()
    assert layer.gate().tolist() == pytest.approx([0.5] * 8)
    assert layer.running_var.tolist() == [1] * 8
