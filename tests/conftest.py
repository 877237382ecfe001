"""One thread a process: the suite runs in parallel processes, and results do not hang on the machine."""

import torch

torch.set_num_threads(1)
