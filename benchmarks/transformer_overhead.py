"""What gates on heads and neurons cost in a training step of a transformer: gated against plain, in turns."""

import argparse
import statistics
from collections.abc import Callable

import torch
from harness import interleaved_times, keep_memory, median_ratio, training_step, write_record
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.models.transformer import TextClassifier

VOCABULARY, CLASSES, HEAD_SIZE = 1000, 2, 32


def step_of(tokens: Tensor, args: argparse.Namespace, compete: str | None) -> Callable[[], None]:
    """One step on random tokens: forward, loss (with the term of a budget), backward, AdamW."""
    torch.manual_seed(0)
    shape = {"layers": args.layers, "heads": args.width // HEAD_SIZE, "dropout": 0.0}
    model: nn.Module = TextClassifier(CLASSES, vocabulary=VOCABULARY, length=args.length, **shape)
    term: Callable[[], Tensor] | None = None
    if compete is not None:
        model = ds.sparsify(model, tokens[:4], compete=compete)  # type: ignore[arg-type]
        term = ds.Budget(model, tokens[:1], macs=0.5, steps=10**6).penalty
    optimizer = torch.optim.AdamW(ds.parameter_groups(model), lr=1e-4)
    labels = torch.randint(CLASSES, (len(tokens),))
    model.train()
    return training_step(model, optimizer, term, tokens, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    keep_memory()
    rows = []
    for batch in args.batches:
        tokens = torch.randint(1, VOCABULARY, (batch, args.length), generator=torch.Generator().manual_seed(0))
        steps = {"plain": step_of(tokens, args, None)}
        steps |= {f"gated, {compete}": step_of(tokens, args, compete) for compete in ("network", "layer")}
        times = interleaved_times(steps, args.rounds)
        ratios = {name: median_ratio(times, name, "plain") for name in steps if name != "plain"}
        medians = {name: statistics.median(seconds) for name, seconds in times.items()}
        rows.append({"batch": batch, "median_seconds": medians, "time_ratio": ratios})
        words = ", ".join(f"{name} {ratio:.3f} of it" for name, ratio in ratios.items())
        print(f"batch {batch}: plain {medians['plain'] * 1e3:.1f} ms per step, {words}")
    results = {"config": vars(args), "rows": rows, "target": {"time_ratio": 1.05}}
    print(f"written to {write_record('transformer_overhead', results).name}")


if __name__ == "__main__":
    main()
