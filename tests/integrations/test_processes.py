"""Two processes hold the same small network in the end, whichever framework trains it."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent


def run_in_two_processes(folder: Path, *command: str) -> str:
    """What `torchrun` with two processes on this machine prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port), *command]
    places = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *start],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": places},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    names = ["wrapper", "lightning", "transformers", "accelerate"]
    run_in_two_processes(folder, "-m", "tests.integrations.processes", str(folder), *names)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", ["wrapper", "lightning", "transformers", "accelerate"])
def test_both_processes_end_with_the_same_small_network(ranks: list[dict[str, Any]], name: str) -> None:
    first, second = (rank[name] for rank in ranks)
    assert first["history"] == second["history"]
    assert first["history"][-1]["macs"] == 0.5
    parameters = [key for key in first["state"] if "running" not in key]
    assert first["state"]["first.weight"].shape == (16, 8)
    for key in parameters:
        assert torch.equal(first["state"][key], second["state"][key]), key


@pytest.mark.parametrize("name", ["wrapper", "transformers"])
def test_it_is_what_it_should_be(ranks: list[dict[str, Any]], name: str) -> None:
    """A wrapper that is renewed does what a new one does; a run that is resumed ends as the whole one."""
    assert all(rank[name]["same"] for rank in ranks)
