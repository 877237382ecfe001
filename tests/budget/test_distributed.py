"""Two processes of half the batch, with synchronised statistics, do what one process does, shrinks included."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import diffsparse as ds
from tests.budget.examples import NETWORKS

WORLD, BATCH, STEPS = 2, 8, 24


def train(rank: int, world: int, shrinks: int) -> dict[str, Any]:
    torch.manual_seed(0)
    make, shape = NETWORKS["pre-activation"]
    net = ds.sparsify(make().double(), start=0.5)
    if world > 1:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(STEPS, WORLD * BATCH, *shape, generator=generator, dtype=torch.double)
    labels = torch.randint(0, 3, (STEPS, WORLD * BATCH), generator=generator)
    part = slice(rank * BATCH, (rank + 1) * BATCH) if world > 1 else slice(None)
    budget = ds.Budget(net, data[0, :2], macs=0.5, steps=STEPS, due=1.0, shrinks=shrinks)
    optimizer = torch.optim.SGD(ds.parameter_groups(net), lr=0.05, momentum=0.9)
    model: nn.Module = DistributedDataParallel(net) if world > 1 else net
    for x, y in zip(data[:, part], labels[:, part], strict=True):
        loss = F.cross_entropy(model(x), y) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if budget.step(optimizer) and world > 1:
            model = DistributedDataParallel(net)
    return {"history": [asdict(look) for look in budget.history], "state": net.state_dict()}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    method = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    torch.save([train(rank, WORLD, shrinks) for shrinks in (1, 2)], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(worker, args=(str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("shrinks", [1, 2])
def test_two_processes_have_the_history_of_one(ranks: list[list[dict[str, Any]]], shrinks: int) -> None:
    first, second = ranks[0][shrinks - 1], ranks[1][shrinks - 1]
    one = train(0, 1, shrinks)
    assert first["history"] == second["history"] == one["history"]
    for key, value in one["state"].items():
        assert torch.equal(first["state"][key], second["state"][key]), key
        torch.testing.assert_close(first["state"][key], value, rtol=1e-6, atol=1e-8)
