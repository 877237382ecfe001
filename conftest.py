"""What holds for every test and every example in a docstring: one thread per process, and registries as they were."""

import gc
import os
from collections.abc import Iterator

import pytest
import torch

from diffsparse.compaction import rules

torch.set_num_threads(1)
# some virtual machines claim to have AMX, and their processes end at its first instruction
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_collection_finish() -> None:
    """Nothing that was imported or collected by now is garbage, and searching it takes long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def rules_as_they_were() -> Iterator[None]:
    """Rules that a test registers are gone after it."""
    tables = (rules.RULES, rules._BY_MODULE)
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
