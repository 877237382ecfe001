"""Seconds that `import diffsparse` takes beyond `import torch`: medians over fresh processes."""

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
import time
start = time.process_time()
import {", ".join(MODULES)}
began = time.process_time()
import diffsparse
print(began - start, time.process_time() - began)
"""


def import_seconds(runs: int) -> list[tuple[float, float]]:
    """CPU seconds of imports, of what is there anyway and of this package, in processes of their own.

    One process goes ahead and leaves compiled files, as an installation does.
    """
    there = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    run = [sys.executable, "-c", CODE]
    done = [subprocess.run(run, capture_output=True, text=True, check=True, env=there) for _ in range(runs + 1)]
    pairs = [each.stdout.split() for each in done[1:]]
    return [(float(before), float(own)) for before, own in pairs]


if __name__ == "__main__":
    times = import_seconds(RUNS)
    before, own = (statistics.median(column) for column in zip(*times, strict=True))
    result = {"seconds": own, "seconds_before": before, "all": times, "modules_before": MODULES}
    (Path(__file__).parent / "results" / "import_time.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"import diffsparse: {own:.3f} s of CPU time, behind {before:.3f} s for {', '.join(MODULES)}")
