"""Is a compact model as fast as one built small, how much faster than the gated one, how long does compaction take?"""

import argparse
import copy
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_pruning as tp
from harness import forward_of, interleaved_times, keep_memory, median_ratio, write_record
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.apply import shrink_in_place, write_plan_tensors
from diffsparse.compaction.capture import capture
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.planner import make_plan
from diffsparse.models import PreResNet, create
from diffsparse.models.preactivation import Bottleneck
from diffsparse.testing import zero_random_channels
from diffsparse.training import Hardware, Recipe, Sparsifying, train


def zero_gates(model: nn.Module, channel_rate: float, block_rate: float, seed: int = 0) -> nn.Module:
    """Random zero gates: whole blocks at `block_rate`, channels of the others at `channel_rate`."""
    generator = torch.Generator().manual_seed(seed)
    for block in (m for m in model.modules() if isinstance(m, Bottleneck)):
        dead = torch.rand((), generator=generator) < block_rate and isinstance(block.shortcut, nn.Identity)
        for norm in (block.bn1, block.bn2, block.bn3):
            zero_random_channels(norm, 1.0 if dead else channel_rate, generator)
    zero_random_channels(model.bn, channel_rate, generator)
    return ds.sparsify(model.eval())


class Selected(nn.Module):
    """What one would write by hand in a pre-activation block: select channels, then batch norm."""

    def __init__(self, index: Tensor, norm: nn.Module) -> None:
        super().__init__()
        self.register_buffer("index", index)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.index_select(1, self.index))


class HandBuilt(nn.Module):
    """The compact network written by hand with ordinary layers of the same widths."""

    def __init__(self, small: PreResNet) -> None:
        super().__init__()
        self.stem = _same_conv(small.stem)
        self.blocks = nn.ModuleList(
            _HandBlock(block) for stage in small.stages for block in stage.children() if isinstance(block, Bottleneck)
        )
        self.bn = _same_norm(small.bn)
        self.classifier = nn.Linear(small.classifier.in_features, small.classifier.out_features)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(F.relu(self.bn(x)).mean((2, 3)))


class _HandBlock(nn.Module):
    def __init__(self, block: Bottleneck) -> None:
        super().__init__()
        self.norms = nn.ModuleList(_same_norm(n) for n in (block.bn1, block.bn2, block.bn3))
        self.convs = nn.ModuleList(_same_conv(c) for c in (block.conv1, block.conv2, block.conv3))
        plain = isinstance(block.shortcut, nn.Identity)
        self.shortcut = nn.Identity() if plain else _same_conv(block.shortcut)

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            out = conv(F.relu(norm(out)))
        return out + self.shortcut(x)


def _same_conv(conv: nn.Conv2d) -> nn.Conv2d:
    expanded = getattr(conv, "expand_fill", None)
    width = conv.out_channels if expanded is None else expanded.numel()
    settings = (conv.kernel_size, conv.stride, conv.padding)
    return nn.Conv2d(conv.in_channels, width, *settings, bias=conv.bias is not None)


def _same_norm(norm: nn.BatchNorm2d) -> nn.Module:
    plain = nn.BatchNorm2d(norm.num_features)
    index = getattr(norm, "select_index", None)
    return plain if index is None else Selected(index.clone(), plain)


def learned_net(depth: int, epochs: int, strength: float) -> nn.Module:
    """A gated network with zeros learned on digits: training kills whole blocks, and channels unevenly."""
    name = f"preresnet{depth}"
    recipe = Recipe(
        model=name,
        data="digits",
        epochs=epochs,
        sparsifying=Sparsifying(strength=strength),
        hardware=Hardware(threads=torch.get_num_threads()),
    )
    with tempfile.TemporaryDirectory() as folder:
        result = train(recipe, Path(folder) / "run")
        print(f"learned on digits in {epochs} epochs: {result['figures']['compact']['accuracy']:.2%} right")
        return ds.load(
            Path(folder) / "run" / "trained.safetensors", ds.sparsify(create(name, 10, in_channels=1))
        ).eval()


def latency(gated: nn.Module, x: Tensor, rounds: int) -> dict[str, Any]:
    """Gated, compact, compact with folded batch norms, and hand-built, in turns."""
    small = ds.compact(gated, x[:2])
    folded = ds.compact(gated, x[:2], fold=True)
    models = {"gated": gated, "compact": small.model, "folded": folded.model, "hand_built": HandBuilt(small.model)}
    times = interleaved_times({name: forward_of(net, x) for name, net in models.items()}, rounds)
    reduction = small.before.macs / small.after.macs
    row = {
        "zero_channels": ds.sparsity(gated).channels.fraction,
        "mac_reduction": reduction,
        "median_seconds": {name: statistics.median(seconds) for name, seconds in times.items()},
        "compact_over_hand_built": median_ratio(times, "compact", "hand_built"),
        "speed_up": median_ratio(times, "gated", "compact"),
        "speed_up_folded": median_ratio(times, "gated", "folded"),
    }
    row["speed_up_over_mac_reduction"] = row["speed_up"] / reduction
    row["speed_up_folded_over_mac_reduction"] = row["speed_up_folded"] / reduction
    print(
        f"  MACs / {reduction:.2f}, compact {row['speed_up']:.2f}x, folded {row['speed_up_folded']:.2f}x faster than "
        f"gated; compact / hand-built {row['compact_over_hand_built']:.3f}"
    )
    return row


def latencies(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of `latency` per network, with random and with learned zeros."""
    rows = []
    # depth, width, share of dead channels, share of dead blocks
    for depth, width, channel_rate, block_rate in (
        (164, 16, 0.5, 0.0),
        (164, 16, 0.6, 0.3),
        (164, 16, 0.2, 0.6),
        (56, 64, 0.5, 0.0),
    ):
        print(f"depth {depth}, width {width}, dead channels {channel_rate:.0%}, blocks {block_rate:.0%}:")
        torch.manual_seed(0)
        gated = zero_gates(PreResNet(depth, width=width, bottleneck=True), channel_rate, block_rate)
        kind = {"depth": depth, "width": width, "channel_rate": channel_rate, "block_rate": block_rate}
        rows.append(kind | latency(gated, torch.randn(args.batch, 3, 32, 32), args.rounds))
    for strength in args.learned_strengths:
        print(f"depth 164, width 16, zeros learned with lambda {strength:g}:")
        kind = {"depth": 164, "width": 16, "learned_strength": strength, "learned_epochs": args.learned_epochs}
        gated = learned_net(164, args.learned_epochs, strength)
        rows.append(kind | latency(gated, torch.randn(args.batch, 1, 32, 32), args.rounds))
    return rows


def _whole(model: nn.Module, x: Tensor) -> None:
    ds.compact(model, x)


def _record_and_cut(model: nn.Module, x: Tensor) -> None:
    """The part that a pruner does as well: no copy, no verification."""
    graph, _ = capture(model.eval(), (x,), {})
    plan, numbers = make_plan(Analysis(graph))
    write_plan_tensors(shrink_in_place(model, plan), numbers)


def _torch_pruning(model: nn.Module, x: Tensor) -> None:
    graph = tp.DependencyGraph().build_dependency(model, example_inputs=x)
    for block in (m for m in model.modules() if isinstance(m, Bottleneck)):
        for norm, conv in ((block.bn2, block.conv1), (block.bn3, block.conv2)):
            gone = (norm.weight == 0).nonzero().flatten().tolist()
            if 0 < len(gone) < norm.num_features:
                graph.get_pruning_group(conv, tp.prune_conv_out_channels, idxs=gone).prune()


def _torch_pruning_on_a_copy(model: nn.Module, x: Tensor) -> None:
    """Like `compact`, which leaves the model unchanged."""
    _torch_pruning(copy.deepcopy(model), x)


def _one_run(tool: str, depth: int, queue: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = materialise(zero_gates(PreResNet(depth, bottleneck=True), 0.5, 0.0))
    x = torch.randn(1, 3, 32, 32)
    # with gradients, the allocator would keep memory that the tool's own forward pass then reuses
    with torch.no_grad():
        model(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    TOOLS[tool](model, x)
    seconds = time.perf_counter() - began
    queue.put((seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024))


TOOLS: dict[str, Callable[[nn.Module, Tensor], None]] = {
    "compact": _whole,
    "torch-pruning, on a copy": _torch_pruning_on_a_copy,
    "record and cut, in place": _record_and_cut,
    "torch-pruning, in place": _torch_pruning,
}


def compaction_time(depth: int, rounds: int) -> dict[str, Any]:
    """Seconds and extra memory of compaction; each run has its own process, in turns."""
    context = multiprocessing.get_context("spawn")
    runs: dict[str, list[tuple[float, int]]] = {tool: [] for tool in TOOLS}
    for _ in range(rounds):
        for tool, seen in runs.items():
            queue = context.Queue()
            process = context.Process(target=_one_run, args=(tool, depth, queue))
            process.start()
            seen.append(queue.get())
            process.join()
    result = {}
    for tool, seen in runs.items():
        result[tool] = {
            "median_seconds": statistics.median(s for s, _ in seen),
            "median_extra_bytes": statistics.median(b for _, b in seen),
        }
        print(
            f"{tool:<25} {result[tool]['median_seconds']:6.2f} s, "
            f"{result[tool]['median_extra_bytes'] / 2**20:6.1f} MiB more memory"
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=164, help="of the net whose compaction is timed")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip-latency", action="store_true")
    parser.add_argument("--learned-strengths", type=float, nargs="*", default=[0.01], help="lambdas of learned zeros")
    parser.add_argument("--learned-epochs", type=int, default=12, help="of the training that learns them")
    args = parser.parse_args()
    results: dict[str, Any] = {"config": vars(args)}
    results["compaction"] = compaction_time(args.depth, args.rounds)
    if not args.skip_latency:
        results["keeps_memory"] = keep_memory()
        results["latency"] = latencies(args)
    print(f"written to {write_record('compact_speed', results).name}")


if __name__ == "__main__":
    main()
