import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.example import Example
from diffsparse.measuring.cost import Recorder, _rnn_cuda, count, dense_parts
from diffsparse.models import PreResNet


class Calls(nn.Module):
    """A parameter and a function of it."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.rand(shape))

    def forward(self, *inputs):
        return self.function(self.weight, *inputs)


def cost(model, *shapes):
    return count(model, Example.of(tuple(torch.rand(shape) for shape in shapes)))


def test_resnet_164():
    macs = 247_646_720
    # Nothing is computed on the meta device, so this is quick.
    with torch.device("meta"):
        found = cost(PreResNet(164), (1, 3, 32, 32))
    assert found.macs == macs
    assert sum(found.macs_by_module.values()) == macs
    assert len(found.macs_by_module) == 167
    assert found.macs_by_module["stem"] == 442_368
    assert found.product_macs == 0
    # What the counter of "Rethinking the value of network pruning" finds.
    assert 2 * macs + found.elementwise_flops == 504_759_306


@pytest.mark.parametrize(
    ("model", "shape", "macs"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), (1, 4, 8, 8), 64 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, 3, stride=2), (5, 4, 9, 9), 5 * 16 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, 3, padding=1, groups=2), (1, 4, 8, 8), 64 * 6 * 2 * 9),
        (nn.Conv2d(4, 8, 3, padding=1, groups=4), (1, 4, 8, 8), 64 * 8 * 9),
        (nn.Conv2d(4, 6, 3, dilation=2), (1, 4, 9, 9), 25 * 6 * 4 * 9),
        (nn.Conv1d(4, 6, 5), (2, 4, 12), 2 * 8 * 6 * 4 * 5),
        (nn.Conv3d(2, 3, 2), (1, 2, 3, 4, 5), 2 * 3 * 4 * 3 * 2 * 8),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (1, 4, 8, 8), 64 * 4 * 6 * 4),
        (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (1, 4, 8, 8), 64 * 4 * 3 * 4),
        (nn.Linear(8, 5), (2, 3, 8), 2 * 3 * 8 * 5),
        (nn.Linear(8, 5), (8,), 40),
        (nn.Linear(8, 5, bias=False), (2, 3, 4, 8), 24 * 40),
        (nn.LSTM(8, 4, num_layers=2), (3, 2, 8), 6 * 16 * (8 + 4 + 4 + 4)),
        (nn.LSTM(8, 4, bidirectional=True, batch_first=True), (2, 3, 8), 6 * 2 * 16 * 12),
        (nn.GRU(8, 4), (3, 2, 8), 6 * 12 * 12),
        (nn.BatchNorm1d(3), (2, 3), 0),
    ],
)
def test_macs_of_layers(model, shape, macs):
    found = cost(model, shape)
    assert found.macs == macs
    assert found.product_macs == 0
    assert found.macs_by_module == ({"": macs} if macs else {})


@pytest.mark.parametrize(
    ("model", "shape", "macs"),
    [
        (Calls(lambda w, x: F.conv2d(x, w), 5, 3, 2, 2), (1, 3, 4, 4), 9 * 5 * 3 * 4),
        (Calls(lambda w, x: F.conv2d(x, 2 * w), 5, 3, 2, 2), (1, 3, 4, 4), 9 * 5 * 3 * 4),
        (Calls(lambda w, x: w @ x, 5, 3), (3,), 15),
        (Calls(lambda w, x: torch.addmv(x, w, x), 3, 3), (3,), 9),
        (Calls(lambda w, x: torch.einsum("bti,io->bto", x, w), 8, 5), (2, 3, 8), 240),
        (Calls(lambda w, x: torch.bmm(x, w), 2, 8, 5), (2, 3, 8), 240),
        (Calls(lambda w, x: torch.baddbmm(x, x, w), 2, 8, 8), (2, 3, 8), 6 * 64),
    ],
)
def test_raw_parameters(model, shape, macs):
    found = cost(model, shape)
    assert (found.macs, found.product_macs) == (macs, 0)


def test_a_frozen_layer_on_a_transposed_input_is_still_linear():
    model = nn.Linear(8, 5, bias=False).requires_grad_(False)
    found = count(model, Example.of(torch.rand(3, 2, 8).transpose(0, 1)))
    assert (found.macs, found.product_macs) == (240, 0)


def test_products_of_activations_are_counted_and_are_a_figure_of_their_own():
    found = cost(Calls(lambda w, x, y: torch.bmm(x, y), 1), (2, 3, 8), (2, 8, 5))
    assert (found.macs, found.product_macs, found.layer_macs) == (240, 240, 0)


def test_scaled_dot_product_attention():
    found = cost(
        Calls(lambda w, q, k, v: F.scaled_dot_product_attention(q, k, v), 1), (2, 4, 3, 8), *[(2, 4, 5, 8)] * 2
    )
    assert found.macs == found.product_macs == 2 * 4 * 3 * 5 * (8 + 8)


def test_fused_transformer_layers_are_looked_into():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = cost(model, (2, 3, 8))
    products = 2 * 2 * 3 * 3 * (4 + 4)
    assert found.layer_macs == 2 * 3 * (4 * 8 * 8 + 2 * 8 * 16)
    assert found.product_macs == products
    assert found.macs == found.layer_macs + products
    assert found.macs_by_module == {"self_attn": 6 * 4 * 64 + products, "linear1": 6 * 128, "linear2": 6 * 128}
    assert torch.backends.mha.get_fastpath_enabled()


def test_recurrent_layers_of_a_gpu():
    weights = [(16, 8), (16, 4), (16,), (16,)]
    assert _rnn_cuda((3, 2, 8), weights, out_shape=None) == 2 * 6 * 16 * 12


def test_a_layer_used_twice_counts_twice():
    layer = nn.Linear(4, 4)
    assert cost(nn.Sequential(layer, nn.ReLU(), layer), (1, 4)).macs_by_module == {"0": 32}


def test_macs_go_to_the_innermost_module():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)
            self.stray = [nn.Linear(2, 3)]

        def forward(self, x):
            before = F.linear(x, torch.ones(1, 4))
            return before, self.stray[0](self.inner(x)), F.linear(x, torch.ones(5, 4))

    model = nn.Sequential(Outer())
    assert cost(model, (1, 4)).macs_by_module == {"0": 4 + 6 + 20, "0.inner": 8}


def test_an_error_that_the_model_survives_does_not_confuse_the_names():
    class Fallback(nn.Module):
        def __init__(self):
            super().__init__()
            self.wrong, self.right = nn.Sequential(nn.Linear(9, 9)), nn.Linear(4, 2)

        def forward(self, x):
            try:
                return self.wrong(x)
            except RuntimeError:
                return F.relu(F.linear(x, torch.ones(3, 4))), self.right(x)

    assert cost(Fallback(), (1, 4)).macs_by_module == {"": 12, "right": 8}


def test_gates_leave_the_headline_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = cost(model, (1, 3, 8, 8)).macs
    assert cost(ds.sparsify(copy.deepcopy(model)), (1, 3, 8, 8)).macs == before == 36 * 4 * 27


def test_counting_leaves_no_hooks():
    hooks = torch.nn.modules.module
    model = nn.Linear(2, 2)
    cost(model, (1, 2))
    with pytest.raises(ds.SparsityError):
        cost(model, (1, 3))
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks_always_called
    assert not model._forward_hooks


@torch.no_grad()
def record(model, *inputs):
    model.eval()
    with Recorder(model, inputs) as recorder:
        model(*inputs)
    return recorder


def test_peak_is_the_largest_sum_of_live_tensors():
    # In bytes: input 16, hidden 32, after the ReLU another 32, output 8; the hidden one is freed before the output.
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    assert record(model, torch.zeros(1, 4)).peak_bytes == 16 + 32 + 32


def test_writing_in_place_takes_no_memory():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    assert record(model, torch.zeros(1, 4)).peak_bytes == 16 + 32 + 8


def test_a_tensor_held_for_later_counts_until_it_is_used():
    class Skip(nn.Module):
        def forward(self, x):
            kept = x + 1
            for _ in range(3):
                x = x * 2
            return x + kept

    # Input, kept, the old and the new product.
    assert record(Skip(), torch.zeros(5)).peak_bytes == 4 * 5 * 4


def test_views_and_element_sizes():
    model = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (3, 2)))
    assert record(model, torch.zeros(1, 6, dtype=torch.float64)).peak_bytes == 6 * 8


def test_weights_and_their_views_are_no_activations():
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(100))
            self.weight = nn.Parameter(torch.zeros(100))

        def forward(self, x):
            return x, self.weight.view(10, 10).t(), self.table[:5]

    assert record(Transposed(), torch.zeros(2)).peak_bytes == 8


def test_memory_of_sparse_tensors():
    class Sparsely(nn.Module):
        def forward(self, x):
            return x.to_sparse()

    eye = torch.eye(50)
    # 50 values of 4 bytes and 2 x 50 indices of 8 at the least, whatever scratch the conversion needs.
    assert record(Sparsely(), eye).peak_bytes >= 50 * 50 * 4 + 50 * (4 + 16)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_parts_of_sparse_tensors_hold_all_values(layout):
    parts = dense_parts(getattr(torch.eye(3), layout)())
    assert all(part.layout == torch.strided for part in parts)
    assert [part.numel() for part in parts if part.is_floating_point()] == [3]
    assert sum(part.numel() for part in parts) in (9, 10)


@pytest.mark.parametrize(
    ("model", "shape", "flops"),
    [
        (nn.BatchNorm2d(3), (2, 3, 4, 5), 2 * 120),
        (nn.ReLU(), (2, 3), 6),
        (nn.ReLU(inplace=True), (2, 3), 6),
        (nn.Linear(3, 5), (2, 3), 10),
        (nn.Linear(3, 5, bias=False), (2, 3), 0),
        (nn.Conv2d(3, 5, 1), (2, 3, 4, 4), 2 * 5 * 16),
        (nn.Conv2d(3, 5, 1, bias=False), (2, 3, 4, 4), 0),
        (nn.AvgPool2d(2), (1, 3, 4, 4), 3 * 4 * 4),
        (nn.MaxPool2d((3, 2), 1), (1, 1, 4, 4), 2 * 3 * 6),
        (nn.AdaptiveAvgPool2d(1), (1, 3, 4, 4), 48),
        (nn.AdaptiveAvgPool2d(2), (1, 3, 4, 4), 48),
        (nn.Tanh(), (2, 3), 0),
    ],
)
def test_elementwise_flops(model, shape, flops):
    assert record(model, torch.rand(shape)).elementwise_flops == flops
