"""Learning a graph: training steps for growing graphs, two ways to balance, dense against sparse evaluation."""

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from harness import interleaved_times, median_ratio, peak_bytes, write_record
from torch import Tensor

import diffsparse as ds
from diffsparse.functional import balanced_limit, balanced_normalize
from diffsparse.nn import GraphConvolution, SparseAdjacency
from diffsparse.nn.graph import SPARSE_DENSITY, SPARSE_NODES
from diffsparse.traffic.model import TrafficGCN

BALANCES: dict[str, Callable[[Tensor], Tensor]] = {"fixed": balanced_normalize, "limit": balanced_limit}


def roads(nodes: int, density: float, two_way: bool = True) -> Tensor:
    """Each node reads itself and its nearest nodes, on both sides or only on one; bool (nodes, nodes)."""
    offset = (torch.arange(nodes).unsqueeze(0) - torch.arange(nodes).unsqueeze(1)) % nodes
    reach = max(1, round(density * nodes))
    if not two_way:
        # an open chain of one-way streets: only the diagonal lies on a cycle
        return ((offset <= reach) & (torch.arange(nodes).unsqueeze(1) + offset < nodes)).bool()
    return (offset <= reach // 2) | (offset >= nodes - reach // 2)


def training_step(nodes: int, batch: int, balance: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """Forward, mean relative error, penalty, backward and Adam on random speeds."""
    torch.manual_seed(0)
    model = TrafficGCN(nodes, mean=50.0, std=10.0, adjacency=SparseAdjacency(nodes, balance=balance))
    penalty = ds.Penalty(model, norm=ds.Lp(0.5), strength=1e-6)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    past, target = 50 + 10 * torch.randn(batch, 8, nodes), 30 + 40 * torch.rand(batch, nodes)

    def step() -> None:
        loss = ((model(past) - target).abs() / target).mean() + penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def balancing(matrix: Tensor, balance: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """Balance once, forward and backward."""
    free, grad = matrix.clone().requires_grad_(), torch.ones_like(matrix).tril()

    def run() -> None:
        free.grad = None
        balance(free).backward(grad)

    return run


def compare(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds and peak bytes of each call, timed in turn."""
    times = interleaved_times(calls, rounds, warmup=1)
    return {
        name: {"median_seconds": statistics.median(times[name]), "peak_bytes": peak_bytes(call)}
        for name, call in calls.items()
    }


def exponent(sizes: list[int], values: list[float]) -> float:
    """The k of the power law size^k that fits best in logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(x, y).slope


def growth(rows: list[dict[str, Any]], sizes: list[int], kinds: list[str]) -> dict[str, Any]:
    return {
        kind: {key: exponent(sizes, [row[kind][key] for row in rows]) for key in ("median_seconds", "peak_bytes")}
        for kind in kinds
    }


def steps(sizes: list[int], batch: int, rounds: int) -> dict[str, Any]:
    """A training step of the traffic model with each way to balance."""
    print(f"training step of the traffic model, batch {batch}")
    rows = []
    for nodes in sizes:
        row = compare({name: training_step(nodes, batch, balance) for name, balance in BALANCES.items()}, rounds)
        rows.append({"nodes": nodes, **row})
        for name in BALANCES:
            print(f"  {nodes:5} nodes, {name}: {_cost(row[name])}")
    powers = growth(rows, sizes, list(BALANCES))
    for name, power in powers.items():
        print(f"  {name}: time ~ n^{power['median_seconds']:.2f}, memory ~ n^{power['peak_bytes']:.2f}")
    return {"rows": rows, "exponents": powers}


def balances(sizes: list[int], density: float, rounds: int) -> dict[str, Any]:
    """The normalisation alone, at the start of training and on sparse patterns."""
    print("balancing alone, forward and backward")
    results: dict[str, Any] = {}
    patterns = {
        "start, no zeros": lambda n: torch.ones(n, n, dtype=torch.bool),
        "two-way roads": lambda n: roads(n, density),
        "one-way roads": lambda n: roads(n, density, two_way=False),
    }
    for label, pattern in patterns.items():
        rows = []
        for nodes in sizes:
            torch.manual_seed(0)
            matrix = torch.randn(nodes, nodes).exp() * pattern(nodes)
            row: dict[str, Any] = compare({name: balancing(matrix, f) for name, f in BALANCES.items()}, rounds)
            for name, balance in BALANCES.items():
                balanced = balance(matrix)
                row[name]["worst_sum_error"] = max((balanced.sum(d) - 1).abs().max().item() for d in (0, 1))
                print(f"  {label}, {nodes:5} nodes, {name}: {_cost(row[name])}, {row[name]['worst_sum_error']:.0e} off")
            rows.append({"nodes": nodes, **row})
        results[label] = {"rows": rows, "exponents": growth(rows, sizes, list(BALANCES))}
    return results


def evaluation(sizes: list[int], densities: list[float], batch: int, rounds: int) -> list[dict[str, Any]]:
    """Five layers without gradients, with a dense adjacency and with a CSR one; the conversion counts."""
    print(f"evaluation of five graph convolutions of width 64, batch {batch}; conversion included")
    rows = []
    for nodes in sizes:
        layers = [GraphConvolution(64, 64).train() for _ in range(5)]
        h = torch.randn(batch, nodes, 64)
        for density in densities:
            a = roads(nodes, density) * torch.rand(nodes, nodes)
            calls = {"dense": lambda a=a: a, "sparse": lambda a=a: a.to_sparse_csr()}
            runs = {name: _stack(layers, h, operand) for name, operand in calls.items()}
            # short calls need more rounds, because other work on the machine disturbs them
            times = interleaved_times(runs, rounds * max(1, 2000 // nodes), warmup=1)
            speed_up = median_ratio(times, "dense", "sparse")
            medians = {name: statistics.median(seconds) for name, seconds in times.items()}
            rows.append({"nodes": nodes, "density": density, "median_seconds": medians, "speed_up": speed_up})
            print(f"  {nodes:5} nodes, {density:4.0%}: dense {medians['dense'] * 1e3:8.1f} ms, sparse {speed_up:.2f}x")
    return rows


def _stack(layers: list[GraphConvolution], h: Tensor, operand: Callable[[], Tensor]) -> Callable[[], Tensor]:
    @torch.no_grad()
    def run() -> Tensor:
        a, out = operand(), h
        for layer in layers:
            out = torch.relu(layer(out, a))
        return out

    return run


def _cost(row: dict[str, float]) -> str:
    return f"{row['median_seconds'] * 1e3:8.1f} ms, peak {row['peak_bytes'] / 2**20:7.1f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[170, 500, 1000, 2000])
    parser.add_argument("--density", type=float, default=0.03, help="of the sparse adjacencies")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    results = {
        "config": vars(args),
        "constants": {"SPARSE_NODES": SPARSE_NODES, "SPARSE_DENSITY": SPARSE_DENSITY},
        "step": steps(args.nodes, args.batch, args.rounds),
        "balance": balances(args.nodes, args.density, args.rounds),
        "evaluation": evaluation([100, *args.nodes], [args.density, 0.05, 0.1], args.batch, args.rounds),
    }
    print(f"written to {write_record('graph_speed', results).name}")


if __name__ == "__main__":
    main()
