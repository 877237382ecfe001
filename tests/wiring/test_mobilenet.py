import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.wiring import FixedRandom, TopK
from diffsparse.wiring.mobilenet import WiredMobileNet


def test_nodes_and_edges_of_the_published_network() -> None:
    net = WiredMobileNet()
    shapes = [stage.shape for stage in net.stages]
    entries = [s.outputs * s.groups * sum(s.sources) for s in shapes]
    assert entries == [2_048, 49_152, 196_608, 8_650_752, 3_145_728]
    assert [s.usable_edges for s in shapes] == [2_048, 32_768, 131_072, 4_718_592, 2_097_152]
    assert sum(entries) == 12_044_288
    assert sum(s.usable_edges for s in shapes) == 6_981_632
    targets = sum(s.outputs * s.groups for s in shapes)
    assert targets == 5_952
    gates = [gate for stage in net.stages for gate in stage.edges.gates]
    assert sum(gate.alpha.numel() for gate in gates) == 6_981_632
    assert sum(gate.beta.numel() for gate in gates) == 5_952
    assert sum(len(gate.beta) for gate in gates) == sum(gate.alpha.shape[0] for gate in gates)
    nodes = 4_960
    assert sum(p.numel() for p in net.parameters()) == (
        6_981_632 + 5_952 + (9 + 2) * nodes + 2 * 1024 + 27 * 32 + 1024 * 10 + 10
    )


@pytest.mark.parametrize(
    ("options", "size", "maps"),
    [
        ({}, 32, [32, 16, 8, 4, 2]),
        ({"imagenet": True}, 64, [32, 16, 8, 4, 2]),
        ({"small": True, "in_channels": 1}, 8, [8, 4, 2]),
    ],
)
def test_shapes(options, size, maps) -> None:
    net = WiredMobileNet(7, width=0.125, **options).eval()
    seen: list[int] = []
    for stage in net.stages:
        stage.register_forward_hook(lambda module, args, output: seen.append(output.shape[-1]))
    assert net(torch.randn(2, options.get("in_channels", 3), size, size)).shape == (2, 7)
    assert seen == maps


def test_width_scales_every_node() -> None:
    net = WiredMobileNet(width=0.3)
    assert [(s.shape.inputs, s.shape.outputs) for s in net.stages] == [
        (9, 19),
        (19, 38),
        (38, 76),
        (76, 153),
        (153, 307),
    ]


def test_the_rule_reaches_every_stage() -> None:
    net = WiredMobileNet(width=0.25, edges=TopK(density=0.225))
    counts = [sum(int((m != 0).sum()) for m in stage.edges()) for stage in net.stages]
    assert counts == [7, 78, 312, 4562, 4977]
    drawn = WiredMobileNet(width=0.25, edges=FixedRandom(density=0.225))
    assert [sum(int((m != 0).sum()) for m in stage.edges()) for stage in drawn.stages] == counts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width"),
        ({"width": 0.01}, "width=0.01 leaves no node"),
        ({"num_classes": 0}, "num_classes"),
        ({"in_channels": 0}, "in_channels"),
        ({"imagenet": True, "small": True}, "not both"),
        ({"edges": "learned", "width": 0.125}, "edges must be a rule"),
    ],
)
def test_wrong_arguments(options, message) -> None:
    with pytest.raises(SparsityError, match=message):
        WiredMobileNet(**options)
