"""Times a training step of a wired network against a MobileNet of equal dense MACs, and inference after compaction.

Edges are dead at random here, the worst case for compaction: hardly any node loses all of its edges. `--trained` also
times a network with learned zeros, from a run of `diffsparse train`.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import forward_of, interleaved_times, keep_memory, median_ratio, random_images, training_step, write_record
from torch import nn

import diffsparse as ds
from diffsparse.models import create
from diffsparse.models.postactivation import MobileNetV1
from diffsparse.wiring import Differentiable, Plain, compact_wiring, wiring_cost, wiring_graph
from diffsparse.wiring.mobilenet import WiredMobileNet

TARGET = 3.0
"""How many times faster the compact network should be than the gated one when 95 % of the edges are gone."""


def step_of(model: nn.Module, batch: int) -> Callable[[], None]:
    """One step on random images: forward, loss (with a penalty if there are gates), backward, SGD."""
    gated = any(isinstance(module, ds.SignedGate) for module in model.modules())
    penalty = ds.Penalty(model, strength=1e-5) if gated else None
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.01, momentum=0.9)
    return training_step(model, optimizer, penalty, *random_images(batch))


def mobilenet_of(macs: int) -> tuple[MobileNetV1, float]:
    """The MobileNetV1 whose dense MACs come closest, and its width multiplier."""

    def apart(multiplier: float) -> float:
        with torch.device("meta"):
            net = MobileNetV1(multiplier=multiplier)
            image = torch.empty(1, 3, 32, 32)
        return abs(ds.measure(net, image, latency=False).macs / macs - 1)

    # MACs grow roughly with the square of the width, from 46 million at width 1
    near = (macs / 46e6) ** 0.5
    multiplier = min((near * (1 + step / 50) for step in range(-15, 16)), key=apart)
    return MobileNetV1(multiplier=multiplier), multiplier


def training(width: float, batch: int, rounds: int) -> dict[str, Any]:
    """Seconds per training step: dense MobileNet, wired with plain weights, wired with gates."""
    torch.manual_seed(0)
    macs = wiring_cost(WiredMobileNet(width=width, edges=Plain())).mult_adds
    dense, multiplier = mobilenet_of(macs)
    steps = {
        "mobilenet": step_of(dense, batch),
        "wired, plain weights": step_of(WiredMobileNet(width=width, edges=Plain()), batch),
        "wired, gates": step_of(WiredMobileNet(width=width, edges=Differentiable()), batch),
    }
    times = interleaved_times(steps, rounds)
    result = {
        "macs": macs,
        "mobilenet_multiplier": multiplier,
        "median_seconds": {name: statistics.median(seconds) for name, seconds in times.items()},
        "over_mobilenet": {name: median_ratio(times, name, "mobilenet") for name in steps},
        "gates_over_plain": median_ratio(times, "wired, gates", "wired, plain weights"),
    }
    print(f"training step, {macs:,} dense MACs, batch {batch} (wired width {width}, MobileNet x{multiplier:.3f})")
    for name, seconds in result["median_seconds"].items():
        print(f"  {name:<22} {seconds * 1e3:8.1f} ms  {result['over_mobilenet'][name]:5.2f} x MobileNet")
    return result


def with_dead_edges(width: float, rate: float) -> WiredMobileNet:
    """A gated network with edges dead at random and batch norms as after training."""
    torch.manual_seed(0)
    net = WiredMobileNet(width=width)
    for stage in net.stages:
        for i, gate in enumerate(stage.edges.gates):
            values = gate().detach()
            stage.edges.gates[i] = ds.SignedGate.from_values(values * (torch.rand_like(values) >= rate), rgf=0.1)
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.bias.data.normal_(0, 0.2)
        norm.running_var.uniform_(0.5, 1.5)
    return net.eval()


def trained(model: str, path: Path) -> nn.Module:
    """A network that `diffsparse train --method ds` has saved."""
    net: nn.Module = ds.load(path, create(model, num_classes=10)).eval()
    return net


def inference(net: nn.Module, what: str, batches: list[int], rounds: int) -> dict[str, Any]:
    """The gated network, the compact one with dense edges and the one with measured products, timed in turn."""
    graph = wiring_graph(net)
    gone = 1 - graph.edge_count / graph.usable_edges
    rows = []
    print(f"inference, {what}: {gone:.1%} of {graph.usable_edges:,} edges gone")
    for batch in batches:
        x = torch.randn(batch, 3, 32, 32)
        small = compact_wiring(net, x)
        models = {"gated": net, "dense edges": small.compacted.model, "compact": small.model}
        times = interleaved_times({name: forward_of(model, x) for name, model in models.items()}, rounds)
        row = {
            "batch": batch,
            "median_seconds": {name: statistics.median(seconds) for name, seconds in times.items()},
            "speed_up": median_ratio(times, "gated", "compact"),
            "speed_up_dense_edges": median_ratio(times, "gated", "dense edges"),
            "max_difference": small.max_difference,
            "sparse_products": sum(choice.sparse for choice in small.choices),
        }
        rows.append(row)
        seconds = "  ".join(f"{name} {value * 1e3:7.1f} ms" for name, value in row["median_seconds"].items())
        print(f"  batch {batch:>3}  {seconds}  {row['speed_up']:5.2f} x faster (target {TARGET:g})")
    return {"gone": gone, "usable_edges": graph.usable_edges, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--training-width", type=float, default=0.5)
    parser.add_argument("--training-batch", type=int, default=32)
    parser.add_argument("--width", type=float, default=1.0, help="width of the network whose inference is timed")
    parser.add_argument("--dead", type=float, default=0.95, help="share of dead edges")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--trained", nargs=2, action="append", default=[], metavar=("MODEL", "FILE"),
        help="for example wired-mobilenet-0.125 runs/RUN/trained.safetensors, from a run with method ds on CIFAR-10",
    )  # fmt: skip
    args = parser.parse_args()
    networks = {f"dead at random, width {args.width:g}": with_dead_edges(args.width, args.dead)}
    networks |= {f"trained {model}": trained(model, Path(path)) for model, path in args.trained}
    results = {
        "config": vars(args) | {"trained": [model for model, _ in args.trained]},
        "keeps_memory": keep_memory(),
        "training": training(args.training_width, args.training_batch, args.rounds),
        "inference": {what: inference(net, what, args.batches, args.rounds) for what, net in networks.items()},
        "targets": {"speed_up": TARGET},
    }
    print(f"written to {write_record('wiring_speed', results).name}")


if __name__ == "__main__":
    main()
