"""Small models that the tests of this folder save and load."""

import torch
from torch import nn

import diffsparse as ds
from diffsparse.checkpoint.container import raw_bytes
from diffsparse.compaction import Compacted
from diffsparse.models import PreResNet


def resnet(num_classes=10, bottleneck=False):
    return PreResNet(11 if bottleneck else 8, num_classes, width=4, bottleneck=bottleneck)


def trained(model, seed=0):
    """`model` with random numbers everywhere, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator) * 0.8 + 0.2)
    return model.eval()


def gated_resnet(seed=0, dead=("stages.1.0.bn2",), rgf=None, **options):
    """A gated ResNet with random zeros, and layers that are dead altogether."""
    generator = torch.Generator().manual_seed(seed)
    model = ds.sparsify(trained(resnet(**options), seed), rgf=rgf)
    for name, layer in model.named_modules():
        if isinstance(layer, ds.SparseBatchNorm2d):
            size = layer.num_features
            values = torch.rand(size, generator=generator) * (torch.rand(size, generator=generator) > 0.5)
            layer.gate = ds.SignedGate.from_values(values * (name not in dead), rgf=rgf)
    return model.eval()


def compact_resnet(seed=0, **options) -> Compacted:
    return ds.compact(gated_resnet(seed, **options), torch.randn(1, 3, 16, 16))


def sparse_sum(gate=ds.SignedGate):
    branches = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)]
    return nn.Sequential(nn.Linear(4, 4), ds.SparseSum(branches, gate(3)), nn.Linear(4, 2))


class Tied(nn.Module):
    """Input and output embedding are one tensor, and a whole layer has two names."""

    def __init__(self, tie=True, tokens=6, width=4):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.layer = nn.Linear(width, width)
        self.again = self.layer
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, tokens, bias=False)
        if tie:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.norm(self.again(self.layer(self.embedding(tokens)))))


class Odd(nn.Module):
    """Buffers of every kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4).t())
        self.register_buffer("half_width", torch.randn(3).half())
        self.register_buffer("brain", torch.randn(3, 2).bfloat16().t())
        self.register_buffer("scalar", torch.tensor(3.5, dtype=torch.float64))
        self.register_buffer("mask", torch.rand(5) > 0.5)
        self.register_buffer("counts", torch.arange(3, dtype=torch.int32))
        self.register_buffer("byte", torch.tensor(7, dtype=torch.uint8))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("none", torch.zeros(0))
        self.register_buffer("wave", torch.randn(2, dtype=torch.complex64).conj())
        self.register_buffer("tiny", torch.randn(3).to(torch.float8_e4m3fn))
        self.register_buffer("expanded", torch.randn(3, 1).expand(3, 4))
        self.register_buffer("lost", torch.randn(3), persistent=False)


def same_state(first, second):
    """Whether two state dicts have the same names, dtypes, shapes and bytes."""
    if list(first) != list(second):
        return False
    return all(
        a.dtype == b.dtype and a.shape == b.shape and bytes(raw_bytes(a)) == bytes(raw_bytes(b))
        for a, b in zip(first.values(), second.values(), strict=True)
    )


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}
