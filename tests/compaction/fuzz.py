"""Compact many random networks and compare: `python -m tests.compaction.fuzz --count 10000 --seed 0`.

With `--record FILE` it goes on where the file ends: seeds that were done with the same source are not done again.
"""

import argparse
import gc
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from tests.compaction.check import Outcome, check
from tests.compaction.fuzz_record import Record
from tests.compaction.networks import Spec, build, options, simpler, specification

PIECE = 1000
"""Networks between two writes of the record."""


def reduce(spec: Spec, fails: Callable[[Spec], bool], seconds: float = 30.0) -> Spec:
    """The simplest specification on the way down that still fails."""
    start, going = time.monotonic(), True
    while going and time.monotonic() - start < seconds:
        going = False
        for smaller in simpler(spec):
            if fails(smaller):
                spec, going = smaller, True
                break
    return spec


def explain(spec: Spec, outcome: Outcome, seconds: float = 30.0) -> str:
    """A failure, reduced, with what is needed to see it again."""
    reduced = reduce(spec, lambda s: check(s).problem == outcome.problem, seconds)
    found = check(reduced)
    return (
        f"seed {spec.seed}: {outcome.problem}\n{found.detail or outcome.detail}\n{build(reduced)}\n"
        f"check(Spec.from_json({options(reduced).to_json()!r}))"
    )


def explain_fallback(spec: Spec, seconds: float = 30.0) -> str:
    """A network on which the first attempt failed, reduced."""
    reduced = reduce(spec, lambda s: check(s).falls_back, seconds)
    return (
        f"seed {spec.seed}: {check(reduced).detail}\n{build(reduced)}\nSpec.from_json({options(reduced).to_json()!r})"
    )


def _prepare() -> None:
    """Of a process: one thread, and no search for garbage among what was imported."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def _work(seed: int) -> tuple[int, Outcome]:
    try:
        return seed, check(specification(seed))
    except Exception:
        return seed, Outcome("the test itself", traceback.format_exc(limit=-6))


def _run(record: Record, path: Path | None, seeds: list[range], processes: int) -> dict[int, Outcome]:
    """Check all seeds; the outcomes that need an explanation."""
    start, done, odd, count = time.monotonic(), 0, {}, sum(map(len, seeds))
    with multiprocessing.get_context("spawn").Pool(processes, _prepare) as workers:
        for piece in seeds:
            began = time.monotonic()
            for seed, outcome in workers.imap_unordered(_work, piece, chunksize=4):
                record.add(seed, outcome)
                if outcome.problem or outcome.falls_back:
                    odd[seed] = outcome
                done += 1
                if done % 25 == 0 or done == count:
                    speed = done / (time.monotonic() - start)
                    print(f"\r{done}/{count} networks, {speed:.1f}/s, {len(odd)} odd", end="", flush=True)
            record.add_range(piece, time.monotonic() - began)
            record.write(path)
    return odd


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--record", type=Path, help="a JSON file with the ranges done; made, or gone on with")
    parser.add_argument("--show", type=int, default=10, help="failures to reduce and print")
    given = parser.parse_args()
    record = Record.read(given.record)
    seeds = list(record.missing(given.seed, given.count, PIECE))
    odd = _run(record, given.record, seeds, given.processes)
    print(f"\n{record}\n{Counter(record.problems.values()).most_common()}", flush=True)
    shown = Counter[str]()
    for seed, outcome in sorted(odd.items()):
        shown[outcome.problem] += 1
        if shown[outcome.problem] <= 2 and shown.total() <= given.show:
            spec = specification(seed)
            print("\n" + (explain(spec, outcome) if outcome.problem else explain_fallback(spec)), flush=True)
    return int(record.wrong + record.refused + record.unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
