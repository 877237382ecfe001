"""Seconds that `import diffsparse` takes beyond `import torch`: medians over fresh processes.

Python's collector goes through all of torch's objects once, shortly after torch is imported, whatever comes next. So it
runs before the clock starts; what it takes is written beside.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 5
MODULES = ("torch", "numpy", "safetensors.torch")
"""What every user of the package has imported anyway, or needs in any case."""
CODE = f"""
import gc, time
start = time.process_time()
import {", ".join(MODULES)}
imported = time.process_time()
gc.collect()
began = time.process_time()
import diffsparse
print(imported - start, began - imported, time.process_time() - began)
"""


def import_seconds(runs: int) -> list[tuple[float, ...]]:
    """CPU seconds of the imports of what is there anyway, of the collector and of this package, in fresh processes.

    One process goes ahead and leaves compiled files, as an installation does.
    """
    there = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    run = [sys.executable, "-c", CODE]
    done = [subprocess.run(run, capture_output=True, text=True, check=True, env=there) for _ in range(runs + 1)]
    return [tuple(map(float, each.stdout.split())) for each in done[1:]]


if __name__ == "__main__":
    times = import_seconds(RUNS)
    before, collector, own = (statistics.median(column) for column in zip(*times, strict=True))
    result = {"seconds": own, "seconds_before": before, "seconds_of_collector": collector, "all": times}
    result |= {"modules_before": MODULES}
    (Path(__file__).parent / "results" / "import_time.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"import diffsparse: {own:.3f} s of CPU time, behind {before:.3f} s for {', '.join(MODULES)}")
