import pytest
import torch
from torch import nn

from diffsparse.measuring.recorder import Recorder, dense_parts


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
