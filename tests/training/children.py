"""Real processes for the tests: they start fast because a server that has imported everything forks them."""

import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from diffsparse.cli.main import main
from tests.training.examples import RUN_MODULE, small_data

CONTEXT = multiprocessing.get_context("forkserver")
# the last two would be imported on the way
CONTEXT.set_forkserver_preload(["tests.training.children", "sklearn.datasets", "torch._dynamo"])
PATIENCE = 100
"""Seconds after which a process counts as stuck."""


def started(target: Callable[..., None], *args: Any) -> BaseProcess:
    """A new process that runs `target`."""
    process = CONTEXT.Process(target=target, args=args)
    process.start()
    return process


def finished(process: BaseProcess) -> int | None:
    """The exit code of a process, which must end by itself."""
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        raise AssertionError("a process is stuck")
    return process.exitcode


def wait_for(condition: Callable[[], Any], process: BaseProcess) -> None:
    """Until `condition` holds, or the process has ended."""
    ends = time.monotonic() + PATIENCE
    while not condition() and process.is_alive():
        assert time.monotonic() < ends, "nothing happened"
        time.sleep(0.002)


def command(arguments: list[str], output: Path, *, small: bool, kill_at_sync: int = 0) -> None:
    """`diffsparse` with `arguments` in this process, its words in files; killed at a call of fsync, if asked for."""
    torch.set_num_threads(1)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(output.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    if small:
        use_small_data()
    if kill_at_sync:
        _kill_at_sync(kill_at_sync)
    main(arguments)
    sys.stdout.flush()


def use_small_data() -> None:
    """The small data in the place of whatever a recipe names, for the rest of this process."""
    made = small_data()
    RUN_MODULE.open_data = lambda *_, **__: made  # type: ignore[attr-defined]


def _kill_at_sync(number: int) -> None:
    sync, calls = os.fsync, [0]

    def deadly(handle: int) -> None:
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    os.fsync = deadly  # type: ignore[assignment]


def together(target: Callable[..., None], *args: Any) -> list[int | None]:
    """Run `target` in two processes that form a group, with their ranks; gives their exit codes."""
    # the store lives here, as with torchrun, so that no port has to be guessed
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [started(_rank, rank, store.port, target, args) for rank in range(2)]
    return [finished(process) for process in ranks]


def _rank(rank: int, port: int, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    # what was there before the fork need not be searched by the collector
    gc.freeze()
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    target(rank, *args)
