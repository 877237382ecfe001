"""Run the test bed: `python -m tests.compaction.architectures [--only NAME ...] [--write] [--explain]`."""

import argparse
import multiprocessing
import sys
import time
import warnings

import diffsparse as ds
from diffsparse.example import Example
from diffsparse.measuring import count
from tests.compaction.architectures.architecture import ARCHITECTURES
from tests.compaction.architectures.report import HEAD, PAGE, RECORD, Line, as_json, documented, line
from tests.compaction.architectures.trial import Result, half_dead
from tests.compaction.oracle import live_macs


def explain(name: str, shifts: bool) -> None:
    """Print the modules that compute more than is live, and what was kept."""
    architecture = ARCHITECTURES[name]
    model, example = half_dead(architecture, shifts=shifts), architecture.inputs(100)
    live = live_macs(model, architecture.inputs)
    small = ds.compact(model, example)
    after = count(small.model, Example.of(example))
    print(f"\n{name}, {'with' if shifts else 'without'} constants: live {live.live}, of {live.whole}")
    print(f"after {after.macs}, {after.product_macs} of them in products without a parameter")
    for module in sorted(after.macs_by_module, key=lambda key: live.by_module[key] - after.macs_by_module[key])[:15]:
        if (does := after.macs_by_module[module]) != live.by_module[module]:
            print(f"  {module}: {does} instead of {live.by_module[module]}; {small.plan.layers.get(module, '')}")
    print(*(f"  kept {entry.layer}: {entry.reason}" for entry in small.kept), sep="\n")
    print(*(f"  fell back: {reason}" for reason in small.fallbacks), sep="\n")


def _print(done: Line) -> None:
    print(f"{done.zero.name:<48}" + "".join(f"{cell:>20}" for cell in done.cells[1:]), flush=True)
    for result in (done.zero, done.constant):
        for problem in filter(None, [result.problem, *(f"fell back: {reason}" for reason in result.fallbacks)]):
            print(f"    {'zero' if result is done.zero else 'constant'}: {problem[:300]}", flush=True)


def _summary(results: list[Result]) -> str:
    exact = [result for result in results if not result.problem]
    tight = sum(result.ratio <= 1.05 for result in exact)
    possible = sum(result.above_least <= 1.05 for result in exact)
    return (
        f"{len(results)} compacted, {len(results) - len(exact)} failed, at most 1.05 of what is live: {tight}, "
        f"of the least: {possible}; worst {max(r.ratio for r in exact):.3f}, {max(r.above_least for r in exact):.3f}"
    )


def main() -> int:
    """Run what the arguments say; the exit code is 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="the record and the table in the documentation")
    parser.add_argument("--explain", action="store_true", help="where more is computed than is live")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [name for name in ARCHITECTURES if any(part.lower() in name.lower() for part in given.only)]
    start, lines = time.monotonic(), []
    print(f"{HEAD[0]:<48}" + "".join(f"{cell:>20}" for cell in HEAD[1:]))
    with multiprocessing.get_context("spawn").Pool(given.processes) as workers:
        for done in workers.imap(line, chosen):
            lines.append(done)
            _print(done)
            for shifts in (False, True) if given.explain else ():
                explain(done.zero.name, shifts)
    print(f"zero: {_summary([each.zero for each in lines])}")
    print(f"constant: {_summary([each.constant for each in lines])}; {time.monotonic() - start:.0f} s")
    if given.write:
        RECORD.write_text(as_json(lines))
        PAGE.write_text(documented(PAGE.read_text(), lines))
    return int(any(each.problem for both in lines for each in (both.zero, both.constant)))


if __name__ == "__main__":
    sys.exit(main())
