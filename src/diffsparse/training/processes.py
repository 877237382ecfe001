"""One process or several that train together, and what they run on."""

import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffsparse.data.dataset import Share
from diffsparse.errors import SparsityError
from diffsparse.training.config import Hardware
from diffsparse.version import __version__

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process, and how it talks to the others, if there are any."""

    device: torch.device
    rank: int = 0
    """Which process this is."""
    world: int = 1
    """How many processes there are."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0

    @property
    def share(self) -> Share:
        """What this process takes of each batch."""
        return Share(rank=self.rank, world=self.world)

    def added(self, sums: Tensor) -> Tensor:
        """The sum of `sums` over all processes."""
        if self.world > 1:
            # gloo has no doubles on a GPU and nccl none on the CPU, so the device decides
            sums = sums.clone()
            dist.all_reduce(sums)
        return sums

    def any_rank(self, flag: bool) -> bool:
        """Whether any process raised its flag."""
        return flag if self.world == 1 else bool(self.added(torch.tensor(float(flag), device=self.device)) > 0)

    def first_does(self, action: Callable[[], Result], failure: str) -> Result | None:
        """Let the first process act before the others go on; None for those. If it fails, all processes raise."""
        result, problem = None, None
        if self.first:
            try:
                result = action()
            except SparsityError as error:
                problem = error
        if self.any_rank(problem is not None):
            raise problem or SparsityError(failure)
        return result

    def share_buffers(self, model: nn.Module) -> None:
        """Give every process the running statistics of the first: each has seen other images."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            dist.barrier()

    def together(self, model: nn.Module) -> nn.Module:
        """`model`, with gradients that are means over all processes."""
        if self.world == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)


def own_rank() -> int:
    """The number that torchrun gave this process; 0 if it is alone."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def joined(hardware: Hardware) -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone; leaves the group at the end."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), own_rank()
    device = _device(hardware.device, int(os.environ.get("LOCAL_RANK", "0")))
    with threads(hardware.threads):
        if world == 1:
            yield Processes(device=device)
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=world)
        try:
            yield Processes(device=device, rank=rank, world=world)
        finally:
            # a wrapper of DDP is part of a cycle; if it is the last to hold the group, it may wait forever for a
            # thread of the group, which waits for the interpreter
            gc.collect()
            dist.destroy_process_group()


@contextmanager
def threads(wanted: int | None) -> Iterator[None]:
    """Use this many threads inside an operation, None for no change; restores the number at the end."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if wanted is None else wanted)
        yield
    finally:
        torch.set_num_threads(before)


def _device(name: str | None, local_rank: int) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", local_rank)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        raise SparsityError(f"device '{name}' cannot be used: {str(error).splitlines()[0]}") from error
    return device


def environment() -> dict[str, Any]:
    """Versions and the machine, as plain data."""
    return {
        "diffsparse": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
