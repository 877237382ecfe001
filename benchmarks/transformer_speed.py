"""How much of the saved MACs of a transformer becomes time: BERT- and GPT-like networks, PyTorch and onnxruntime."""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from harness import forward_of, interleaved_times, keep_memory, median_ratio, write_record
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.gates import named_gates
from diffsparse.models.transformer import LanguageModel, TextClassifier

VOCABULARY, HEAD_SIZE = 1000, 32
TARGET = 0.8
"""Speed-up over MAC reduction to reach."""


def network(kind: str, args: argparse.Namespace) -> nn.Module:
    """A network with random weights."""
    shape = {"length": args.length, "layers": args.layers, "heads": args.width // HEAD_SIZE, "vocabulary": VOCABULARY}
    torch.manual_seed(0)
    return (TextClassifier(2, **shape) if kind == "bert" else LanguageModel(**shape)).eval()


def halved(model: nn.Module, example: Tensor, share: float) -> ds.Compacted[Any]:
    """The network with about this share of its MACs: of the heads, and of the neurons, of every layer."""
    ds.sparsify(model, example, start=1.0, kinds=("heads", "neurons"), compete="layer")
    for _, gate in named_gates(model):
        places = torch.randperm(gate.alpha.numel()).view_as(gate.alpha)
        gate.set_values((places < share * gate.alpha.numel()).to(gate.alpha))
    return ds.compact(model, example)


def onnx_run(model: nn.Module, example: Tensor, batch: Tensor) -> Callable[[], Any]:
    """One pass in onnxruntime, with as many threads as PyTorch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        ds.export_onnx(model, example, path, dynamic=(0,))
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: batch.numpy()}
    return lambda: session.run(None, feed)


def row(kind: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Whole and half network in turns, in both runtimes."""
    tokens = torch.randint(1, VOCABULARY, (batch, args.length), generator=torch.Generator().manual_seed(0))
    whole, example = network(kind, args), tokens[:1]
    small = halved(network(kind, args), example, args.share)
    reduction = small.before.macs / small.after.macs
    calls = {
        "torch, whole": forward_of(whole, tokens),
        "torch, small": forward_of(small.model, tokens),
        "onnx, whole": onnx_run(whole, example, tokens),
        "onnx, small": onnx_run(small.model, example, tokens),
    }
    times = interleaved_times(calls, args.rounds)
    threads = torch.get_num_threads()
    found: dict[str, Any] = {"network": kind, "batch": batch, "threads": threads, "mac_reduction": reduction}
    found["median_seconds"] = {name: statistics.median(seconds) for name, seconds in times.items()}
    for runtime in ("torch", "onnx"):
        speed_up = median_ratio(times, f"{runtime}, whole", f"{runtime}, small")
        found[runtime] = {"speed_up": speed_up, "over_mac_reduction": speed_up / reduction}
    words = ", ".join(
        f"{r} {found[r]['speed_up']:.2f}x ({found[r]['over_mac_reduction']:.2f})" for r in ("torch", "onnx")
    )
    print(
        f"{kind}, batch {batch}, {threads} threads: MACs / {reduction:.2f}; faster by (over MAC reduction) {words}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=["bert", "gpt"], choices=["bert", "gpt"])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    keeps = keep_memory()
    rows = []
    for threads in args.threads:
        torch.set_num_threads(threads)
        rows += [row(kind, batch, args) for kind in args.networks for batch in args.batches]
    results = {"config": vars(args), "keeps_memory": keeps, "rows": rows, "target": {"over_mac_reduction": TARGET}}
    print(f"written to {write_record('transformer_speed', results).name}")


if __name__ == "__main__":
    main()
