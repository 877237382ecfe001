"""Liveness against a search through single nodes."""

import pytest
import torch
from torch import nn

from diffsparse.compaction.materialise import materialise
from diffsparse.errors import SparsityError
from diffsparse.wiring import WiringGraph, live_by_one_hop, live_recursively, wiring_graph
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
