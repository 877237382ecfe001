import torch

from diffsparse.graphs import hop_counts, plane_layout
from diffsparse.graphs.drawing import row_order


def grid(side: int) -> torch.Tensor:
    """A street grid, its nodes in a random order."""
    road_map = torch.zeros(side * side, side * side, dtype=torch.bool)
    for node in range(side * side):
        if (node + 1) % side:
            road_map[node, node + 1] = True
        if node + side < side * side:
            road_map[node, node + side] = True
    order = torch.randperm(side * side, generator=torch.Generator().manual_seed(0))
    return road_map[order][:, order]


def stress(places: torch.Tensor, road_map: torch.Tensor) -> float:
    wanted = hop_counts(road_map)
    pairs = torch.ones_like(wanted).triu(1).bool()
    lengths = torch.cdist(places, places)
    return ((lengths - wanted)[pairs] / wanted[pairs]).square().mean().item()


def test_chain_lies_straight_with_its_lengths() -> None:
    places = plane_layout(torch.diag(torch.ones(5), 1))
    assert places.shape == (6, 2)
    assert stress(places, torch.diag(torch.ones(5), 1)) < 1e-6


def test_layout_of_a_grid_is_near_a_minimum_of_its_stress() -> None:
    road_map = grid(5)
    places = plane_layout(road_map)
    best = stress(places, road_map)
    assert best < 0.05
    shaken = [places + 0.05 * torch.randn(25, 2, generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert all(stress(other, road_map) > best for other in shaken)


def test_linked_nodes_are_nearer_than_others() -> None:
    road_map = grid(5)
    lengths = torch.cdist(plane_layout(road_map), plane_layout(road_map))
    hops = hop_counts(road_map)
    assert lengths[hops == 1].max() < lengths[hops >= 3].min()


def test_parts_without_a_way_between_them_stand_apart() -> None:
    road_map = torch.zeros(7, 7)
    road_map[0, 1] = road_map[1, 2] = road_map[3, 4] = 1
    lengths = torch.cdist(plane_layout(road_map), plane_layout(road_map))
    assert lengths.isfinite().all()
    assert lengths[:3, 3:].min() > 1.5
    assert lengths[5, 6] > 1.5


def test_smallest_maps_have_places() -> None:
    assert plane_layout(torch.zeros(1, 1)).tolist() == [[0, 0]]
    assert torch.cdist(*[plane_layout(torch.zeros(2, 2))] * 2)[0, 1] > 1


def test_layout_is_always_the_same() -> None:
    assert torch.equal(plane_layout(grid(4)), plane_layout(grid(4)))


def test_row_order_puts_a_shuffled_chain_in_order() -> None:
    order = torch.tensor([3, 0, 4, 1, 5, 2])
    chain = torch.diag(torch.ones(5), 1)[order][:, order]
    found = [int(order[place]) for place in row_order(chain)]
    assert found in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0])
