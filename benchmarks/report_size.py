"""The HTML report of many runs: how large the file is, and how fast Chromium opens it.

Runs are made up: 164 layers and 160 epochs each, as a long run of a ResNet-164 leaves them. The time is from the start
of the navigation to the end of loading, with everything drawn; the median of several openings in one browser.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import write_record

from diffsparse.records import RunRecord
from diffsparse.report import write_report

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.report.browser import Browser, find_chromium
from tests.report.examples import log, result

METHODS = ("ds", "plain", "slimming")


def runs(count: int, layers: int, epochs: int) -> list[RunRecord]:
    """Made-up runs of three methods."""
    found = []
    for number in range(count):
        share = 0.2 + 0.7 * number / count
        content = result(number, METHODS[number % 3], share, layers)
        found.append(RunRecord(name=f"run-{number:03d}", result=content, log=tuple(log(epochs, share))))
    return found


def measured(count: int, layers: int, epochs: int, openings: int, executable: str) -> dict[str, Any]:
    """Size of the page of `count` runs, and the times of opening it."""
    with tempfile.TemporaryDirectory() as folder, Browser(executable) as browser:
        page = Path(folder, "report.html")
        write_report(page, runs(count, layers, epochs))
        times = [browser.open(page) / 1e3 for _ in range(openings)]
        return {"runs": count, "bytes": page.stat().st_size, "seconds": statistics.median(times), "all_seconds": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=164)
    parser.add_argument("--epochs", type=int, default=160)
    parser.add_argument("--openings", type=int, default=7)
    options = parser.parse_args()
    executable = find_chromium()
    if executable is None:
        sys.exit("no Chromium here; Debian's package is called chromium")
    rows = [measured(count, **vars(options), executable=executable) for count in (1, 10, 100)]
    for row in rows:
        print(f"{row['runs']:>4} runs: {row['bytes'] / 1e6:.2f} MB, opens in {row['seconds']:.2f} s")
    write_record("report_size", {"settings": vars(options), "rows": rows})


if __name__ == "__main__":
    main()
