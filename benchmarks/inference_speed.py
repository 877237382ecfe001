"""Is a compact network fast, in torch and in onnxruntime, and does `optimize` make it faster?

Every row is written to benchmarks/results/inference_speed.json when it is done; a second start goes on from there.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, keep_memory, median_ratio, write_record
from speed_networks import NETWORKS, zero_half
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.analyse import Analysis
from diffsparse.compaction.apply import shrink_in_place, write_plan_tensors
from diffsparse.compaction.materialise import materialise
from diffsparse.compaction.planner import make_plan
from diffsparse.compaction.recording import recorded
from diffsparse.compaction.widening import Widening
from diffsparse.example import Example
from diffsparse.measuring.latency import interleaved_seconds
from diffsparse.measuring.latency_table import LatencyTable
from diffsparse.measuring.onnx_graph import onnx_call
from diffsparse.measuring.predict import predicted_seconds
from diffsparse.methods.torch_pruning import TorchPruning
from diffsparse.models import create
from diffsparse.training import Hardware, Recipe, Sparsifying, train

NAME = "inference_speed"
OPTIONS: dict[str, dict[str, Any]] = {f"round_to={n}": {"round_to": n} for n in (4, 8, 16)} | {"fold": {"fold": True}}
LEARNED = ("preresnet20", "preresnet164", "densenet40", "mobilenetv1-0.25", "resnet50")
DOCS = Path(__file__).parent.parent / "docs" / "speed.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
STRENGTHS = {"preresnet164": 0.01}


def hand_built(model: nn.Module, x: Tensor) -> nn.Module:
    """A network of the same widths as one would write it: layers compute all that the next ones take, no expand."""
    plain = materialise(model).eval()
    graph, _ = recorded(plain, Example.of(x))
    plan, numbers = make_plan(Analysis(graph, widening=Widening(expands=False)))
    write_plan_tensors(shrink_in_place(plain, plan), numbers)
    return plain


def learned(name: str, folder: Path, epochs: int, seed: int, **options: Any) -> nn.Module:
    """A network trained on digits, from its folder if there is one: gated, or small if it was a budget."""
    run = folder / f"{name}-{'-'.join(f'{k}{v:g}' for k, v in options.items())}-{epochs}-{seed}"
    if not (run / "result.json").exists():
        hardware = Hardware(threads=torch.get_num_threads())
        recipe = Recipe(model=name, epochs=epochs, seed=seed, sparsifying=Sparsifying(**options), hardware=hardware)
        train(recipe, run, resume=(run / "config.toml").exists())
    model = create(name, 10, in_channels=1)
    if "latency" in options:
        return ds.load(run / "compact.safetensors", model).eval()
    return ds.load(run / "trained.safetensors", ds.sparsify(model)).eval()


def networks(zeros: str, name: str, args: argparse.Namespace) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """The whole network, the one with zeros, and the shape of an input."""
    torch.manual_seed(0)
    if zeros == "random":
        make, shape = NETWORKS[name]
        model = zero_half(make())
        return model, model, shape
    whole = create(name, 10, in_channels=1).eval()
    shape = (1, 32, 32)
    if zeros == "learned":
        model = learned(name, args.models, args.epochs, 0, strength=STRENGTHS.get(name, 0.02))
        return materialise(model).eval(), model, shape
    return whole, learned(name, args.models, args.epochs, 0, latency=0.5), shape


def columns(whole: nn.Module, model: nn.Module, x: Tensor, backend: str, seconds: float) -> dict[str, nn.Module | None]:
    """The networks of a row by the name of their column; None where a tool fails."""
    lossless = ds.compact(model, x)
    optimised = ds.compact(model, x, optimize="latency", seconds=seconds, backend=backend)
    found: dict[str, nn.Module | None] = {"original": whole, "lossless": lossless.model, "optimised": optimised.model}
    found |= {name: ds.compact(model, x, **options).model for name, options in OPTIONS.items()}
    share = ds.measure(lossless, x, latency=False).macs / ds.measure(whole, x, latency=False).macs
    makers: dict[str, Callable[[], nn.Module]] = {
        "torch_pruning": lambda: TorchPruning(macs=share).cut(whole, x).model,
        "hand_built": lambda: hand_built(model, x),
    }
    for name, make in makers.items():
        try:
            found[name] = make()
        except Exception as error:
            print(f"  {name}: {str(error).splitlines()[0]:.90}")
            found[name] = None
    return found


def row(zeros: str, name: str, backend: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """One row: all networks in turns."""
    whole, model, shape = networks(zeros, name, args)
    x = torch.randn(batch, *shape)
    nets = {key: net.eval() for key, net in columns(whole, model, x, backend, args.seconds).items() if net is not None}
    calls: dict[str, Callable[[], object]] = {}
    with torch.no_grad():
        example = Example.of(x)
        for key, net in nets.items():
            calls[key] = onnx_call(net, example) if backend == "onnxruntime" else lambda net=net: net(x)
        timed = interleaved_seconds(
            list(calls.values()), device=x.device, seconds=args.timing, warmup=3, min_runs=args.rounds
        )
        times = dict(zip(calls, timed, strict=True))
        predicted = None
        if backend == "torch" and args.predict:
            predicted = predicted_seconds(nets["lossless"], example, LatencyTable())
    macs = {key: ds.measure(net, x, latency=False).macs for key, net in nets.items()}
    ratios = {key: median_ratio(times, key, "original") for key in times}
    best = min(ratios[key] for key in ("lossless", *OPTIONS))
    medians = {key: statistics.median(each) for key, each in times.items()}
    return {
        "median_seconds": medians,
        "macs": macs,
        "of_original": ratios,
        "best_option_over_optimised": best / ratios["optimised"],
        "speed_up_over_mac_reduction": (1 / ratios["optimised"]) / (macs["original"] / macs["optimised"]),
        "speed_up_over_lossless_mac_reduction": (1 / ratios["optimised"]) / (macs["original"] / macs["lossless"]),
        "optimised_over_torch_pruning": median_ratio(times, "optimised", "torch_pruning")
        if "torch_pruning" in times
        else None,
        "predicted_over_measured": None if predicted is None else predicted / medians["lossless"],
    }


def all_rows(args: argparse.Namespace) -> list[tuple[str, str, str, int, int]]:
    """Zeros, network, backend, threads and batch of every row that was asked for."""
    kinds = {"random": list(NETWORKS), "learned": list(LEARNED), "latency": list(LEARNED)}
    return [
        (zeros, name, backend, threads, batch)
        for zeros in args.zeros
        for name in kinds[zeros]
        if not args.networks or name in args.networks
        for backend in args.backends
        for threads in args.threads
        for batch in args.batches
    ]


def write_table(rows: dict[str, Any]) -> None:
    """Put one line per row between the marks in docs/speed.md."""
    heads = [
        "row",
        "MACs",
        "lossless",
        "optimised",
        "best option",
        "Torch-Pruning",
        "hand-built",
        "predicted / measured",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for key, entry in rows.items():
        ratios, macs = entry["of_original"], entry["macs"]
        best = min(ratios[name] for name in ("lossless", *OPTIONS))
        shown = [ratios["lossless"], ratios["optimised"], best, ratios.get("torch_pruning"), ratios.get("hand_built")]
        shown = [macs["lossless"] / macs["original"], *shown, entry["predicted_over_measured"]]
        lines.append(f"| {' | '.join([key, *('-' if n is None else f'{n:.2f}' for n in shown)])} |")
    text = DOCS.read_text(encoding="utf-8")
    (before, rest), mark = text.split(BEGIN), END
    DOCS.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + mark + rest.split(mark)[1], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zeros", nargs="*", default=["random", "learned", "latency"])
    parser.add_argument("--networks", nargs="*", default=[], help="all if left out")
    parser.add_argument("--backends", nargs="*", default=["torch", "onnxruntime"])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--seconds", type=float, default=20.0, help="effort of optimize")
    parser.add_argument("--timing", type=float, default=1.0, help="seconds of timing per network")
    parser.add_argument("--rounds", type=int, default=11, help="least number of rounds")
    parser.add_argument("--epochs", type=int, default=8, help="of the runs that learn zeros")
    parser.add_argument("--models", type=Path, default=Path("runs/inference_speed"), help="where these runs are kept")
    parser.add_argument("--predict", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--output", default=NAME, help="name of the record, in benchmarks/results")
    parser.add_argument("--table", action="store_true", help="only write the table in docs/speed.md from the record")
    args = parser.parse_args()
    path = RESULTS / f"{args.output}.json"
    done: dict[str, Any] = json.loads(path.read_text())["rows"] if path.exists() else {}
    if args.table:
        write_table(done)
        return
    keeps = keep_memory()
    for zeros, name, backend, threads, batch in all_rows(args):
        key = f"{zeros}, {name}, {backend}, threads {threads}, batch {batch}"
        if key in done:
            continue
        torch.set_num_threads(threads)
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done[key] = row(zeros, name, backend, batch, args)
        done[key]["seconds"] = time.perf_counter() - began
        ratios = done[key]["of_original"]
        print(f"{key}: {', '.join(f'{column} {ratio:.2f}' for column, ratio in ratios.items())}", flush=True)
        write_record(args.output, {"keeps_memory": keeps, "rows": done})


if __name__ == "__main__":
    main()
