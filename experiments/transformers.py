"""Transformers at half and a third of their MACs: learned gates against magnitude pruning and smaller networks.

    python experiments/transformers.py shakespeare --data-root DIR

DIR holds text/tinyshakespeare.txt, text/sst2_*.tsv and cifar-10-batches-bin. Each run is written to `--runs`.
`--summary` collects them in experiments/results/transformers-TASK.json. Runs that are in either place are not repeated,
so the command can be stopped and started. A plain run takes about three minutes on one core.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # this file has the name of a library, which would not be found with its folder in front
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from experiments.transformer_runs.command import main

    main(__doc__)
