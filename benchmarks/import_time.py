"""Seconds that `import diffsparse` takes beyond `import torch`: the median over fresh processes, in turns."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 7
MODULES = ("torch", "numpy", "safetensors.torch")
"""What every user of the package has imported anyway, or needs in any case."""
CODE = f"""
import time
import {", ".join(MODULES)}
began = time.process_time()
import diffsparse
print(time.process_time() - began)
"""


def import_seconds() -> float:
    """CPU seconds of one import in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    times = [import_seconds() for _ in range(RUNS)]
    result = {"seconds": statistics.median(times), "all": times, "beyond": MODULES}
    (Path(__file__).parent / "results" / "import_time.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"import diffsparse: {result['seconds']:.3f} s of CPU time beyond {', '.join(MODULES)}")
