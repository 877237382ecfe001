import torch
from torch import nn

from diffsparse.wiring.forms import edge_matrix


def test_select_and_expand_around_a_convolution_are_part_of_the_matrix() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 1)
    conv.register_buffer("select_index", torch.tensor([1, 3]))
    conv.register_buffer("expand_index", torch.tensor([0, 2, 4]))
    conv.register_buffer("expand_fill", torch.tensor([9.0, 5.0, 9.0, 0.0, 9.0]))
    x = torch.randn(1, 4, 1, 1)
    matrix, bias = edge_matrix(conv, 4)
    expected = torch.tensor([0.0, 5.0, 0.0, 0.0, 0.0])
    expected[[0, 2, 4]] = conv(x[:, [1, 3]]).flatten()
    assert torch.allclose(matrix @ x.flatten() + bias, expected)
