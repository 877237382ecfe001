"""Liveness against a search through single nodes; costs against numbers worked out by hand, and the published ones."""

import math

import pytest
import torch
from torch import nn

from diffsparse.compaction.materialise import materialise
from diffsparse.errors import SparsityError
from diffsparse.wiring import Plain, WiringGraph, wiring_cost, wiring_graph
from diffsparse.wiring.graph import live_by_one_hop, live_recursively
from diffsparse.wiring.mobilenet import WiredMobileNet
from tests.wiring.nets import drop, tiny

LAYOUT = ((3, 4, 1, 2), (4, 5, 2, 3), (5, 4, 1, 1))


def as_dictionary(graph: WiringGraph) -> dict[tuple[int, int, int], list[tuple[int, int, int]]]:
    """Successors of every node (stage, group, number); output nodes of a stage lead to input nodes of the next."""
    after: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for s, stage in enumerate(graph.stages):
        sources = [(s, g, i) for g, count in enumerate(stage.shape.sources) for i in range(count)]
        for target, matrix in enumerate(stage.edges, 1):
            for v, u in matrix.nonzero().tolist():
                after.setdefault(sources[u], []).append((s, target, v))
        if s + 1 < len(graph.stages):
            for v in range(stage.shape.outputs):
                after.setdefault((s, stage.shape.groups, v), []).append((s + 1, 0, v))
    return after


def reachable(start: list, after: dict) -> set:
    found, todo = set(start), list(start)
    while todo:
        for node in after.get(todo.pop(), []):
            if node not in found:
                found.add(node)
                todo.append(node)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_recursive_liveness_by_search(rate, seed) -> None:
    graph = wiring_graph(tiny(drop(rate, seed), *LAYOUT))
    after = as_dictionary(graph)
    before: dict = {}
    for node, successors in after.items():
        for successor in successors:
            before.setdefault(successor, []).append(node)
    last = graph.stages[-1].shape
    varies = reachable([(0, 0, i) for i in range(3)], after)
    read = reachable([(2, last.groups, v) for v in range(last.outputs)], before)
    live = live_recursively(graph)
    for s, stage in enumerate(graph.stages):
        for g, mask in enumerate(live.nodes[s]):
            assert [(s, g, i) in varies & read for i in range(len(mask))] == mask.tolist()
            if g < stage.shape.groups:
                assert [(s, g, i) in read - varies for i in range(len(mask))] == live.constant[s][g].tolist()
        sources = [(s, g, i) for g, count in enumerate(stage.shape.sources) for i in range(count)]
        for target, (there, alive) in enumerate(zip(stage.edges, live.edges[s], strict=True), 1):
            for v, u in there.nonzero().tolist():
                assert alive[v, u] == (sources[u] in varies and (s, target, v) in read)
            assert not (alive & ~there).any()


def test_one_hop_counts_every_edge_and_looks_no_further() -> None:
    def edit(stages):
        for weight in (w for stage in stages for w in stage):
            weight.zero_()
        # input 0 -> interior 1, interior 2 -> output 3: two pieces that do not meet
        stages[0][0][1, 0] = 1.0
        stages[0][1][3, 2 + 2] = 1.0

    graph = wiring_graph(tiny(edit, (2, 4, 1, 2)))
    live = live_by_one_hop(graph)
    assert [mask.tolist() for mask in live.nodes[0]] == [
        [True, False],
        [False, False, True, False],
        [False, False, False, True],
    ]
    assert sum(int(matrix.sum()) for matrix in live.edges[0]) == graph.edge_count == 2
    deep = live_recursively(graph)
    assert not any(mask.any() for mask in deep.nodes[0])
    assert not any(matrix.any() for matrix in deep.edges[0])
    assert deep.constant[0][1].tolist() == [False, False, True, False]


def test_usable_edges_of_the_whole_network() -> None:
    graph = wiring_graph(WiredMobileNet(width=0.25))
    assert graph.usable_edges == 6_981_632 // 16
    assert (graph.stem_weights, graph.stem_stride, graph.num_classes) == (27, 1, 10)


def test_what_is_no_wired_network() -> None:
    with pytest.raises(SparsityError, match="Linear is not a wired network"):
        wiring_graph(nn.Linear(2, 2))
    with pytest.raises(SparsityError, match="must be a WiredStage; pass the gated network"):
        wiring_graph(materialise(tiny(drop(0.5), *LAYOUT)))
    broken = tiny(drop(0.5), *LAYOUT)
    broken.stages = nn.Sequential(*reversed(broken.stages))
    with pytest.raises(SparsityError, match="do not follow each other"):
        wiring_graph(broken)
    with pytest.raises(SparsityError, match="net must be"):
        wiring_graph(torch.zeros(3))


@pytest.fixture(scope="module")
def complete():
    return wiring_graph(WiredMobileNet(edges=Plain()))


def test_complete_graph(complete) -> None:
    for recursive in (False, True):
        cost = wiring_cost(complete, recursive=recursive)
        assert cost.mult_adds == 105_074_688
        assert cost.edges == 6_981_632
        assert (cost.nodes, cost.constant_nodes) == (4_960, 0)
        assert cost.params == 6_981_632 + 9 * 4_960 + 27 * 32 + 1024 * 10 + 10


def test_discovering_neural_wirings_at_0225(complete) -> None:
    cost = wiring_cost(complete, edges=[stage.shape.edge_count(0.225) for stage in complete.stages])
    assert cost.edges == pytest.approx(158_941.4, abs=0.05)
    assert cost.mult_adds == 4_543_775
    assert cost.params == 214_695
    assert cost.params + cost.batch_norm_params == 226_663


def test_discovering_neural_wirings_on_imagenet() -> None:
    net = WiredMobileNet(1000, imagenet=True, edges=Plain())
    graph = wiring_graph(net)
    cost = wiring_cost(graph, 224, edges=[stage.shape.edge_count(0.49) for stage in graph.stages])
    assert round(cost.mult_adds / 1e6, 1) == 158.8
    # published without the bias of the classifier
    assert round((cost.params - 1000) / 1e6, 3) == 1.823
    maps = [112, 56, 28, 14, 7]
    all_edges = sum(stage.shape.usable_edges * m * m for stage, m in zip(graph.stages, maps, strict=True))
    assert round(all_edges / 1e9, 3) == 1.259
    everything = wiring_cost(graph, 224).mult_adds
    nothing = wiring_cost(graph, 224, edges=[0.0] * 5).mult_adds
    assert everything - nothing == all_edges


def by_hand(stages) -> None:
    for weight in (w for stage in stages for w in stage):
        weight.zero_()
    first, second = stages
    first[0][0, 0] = 1.0  # input 0 -> interior 0
    first[1][1, 2 + 0] = 1.0  # interior 0 -> output 1
    first[1][2, 1] = 1.0  # input 1 -> output 2, which nobody reads
    first[1][0, 2 + 2] = 1.0  # interior 2, which has no input, -> output 0
    second[0][0, 0] = 1.0  # the constant from output 0 goes on
    second[0][1, 1] = 1.0


@pytest.fixture
def small():
    # 2 inputs, 3 interior and 3 output nodes at stride 2; then 3 inputs and 2 outputs; images of 2 channels, 3 classes
    return tiny(by_hand, (2, 3, 2, 2), (3, 2, 1, 1))


def test_one_hop_by_hand(small) -> None:
    cost = wiring_cost(small, 6)
    # senders: inputs 0 and 1, interior 0 and 2; then 0 and 1 of the second stage. Stem: both inputs. Both outputs.
    assert cost.nodes == 4 + 2
    assert cost.edges == 4 + 2
    assert cost.mult_adds == 18 * 2 * 36 + 9 * 6 * 9 + 6 * 9 + 2 * 3
    assert cost.params == 18 * 2 + 9 * 6 + 6 + 2 * 3 + 3
    assert cost.batch_norm_params == 2 * (6 + 2)
    assert cost.constant_nodes == 0


def test_recursive_by_hand(small) -> None:
    cost = wiring_cost(small, 6, recursive=True)
    # input 0 -> interior 0 -> output 1 -> output 1 of the second stage, and no more
    assert cost.nodes == 2 + 1
    assert cost.edges == 3
    assert cost.mult_adds == 18 * 36 + 9 * 3 * 9 + 3 * 9 + 1 * 3
    assert cost.params == 18 + 9 * 3 + 3 + 1 * 3 + 3
    assert cost.batch_norm_params == 2 * (3 + 1)
    # interior 2 of the first and input 0 of the second stage
    assert cost.constant_nodes == 2


def test_the_stem_counts_with_its_own_kernel(small) -> None:
    before = wiring_cost(small, size=8)
    inputs = small.stem.in_channels
    small.stem = nn.Conv2d(inputs, small.stem.out_channels, 7, small.stem.stride, 3, bias=False)
    # both of its outputs are read
    assert wiring_cost(small, size=8).params - before.params == 2 * inputs * (49 - 9)


def test_odd_sizes_are_rounded_up(small) -> None:
    assert wiring_cost(small, 7).mult_adds == 18 * 2 * 49 + (9 * 6 + 6) * 16 + 6


def test_wrong_arguments(small) -> None:
    with pytest.raises(SparsityError, match="one number for each of the 2 stages, got 3"):
        wiring_cost(small, edges=[1.0, 2.0, 3.0])
    for wrong in (-1.0, 22.0, math.nan):
        with pytest.raises(SparsityError, match="edges of stage 0"):
            wiring_cost(small, edges=[wrong, 1.0])
    with pytest.raises(SparsityError, match="size"):
        wiring_cost(small, 0)
