"""Two processes that share a model by `fully_shard` do what one process does, and end with the same small model."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import diffsparse as ds
from diffsparse import SparsityError
from tests.gating.transformers_zoo import NanoGpt

WORLD, BATCH, STEPS = 2, 4, 20


def shard(net: nn.Module, gates: set[nn.Parameter] = frozenset()) -> None:  # type: ignore[assignment]
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh, ignored_params=gates)
    fully_shard(net, mesh=mesh, ignored_params=gates)


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(ds.parameter_groups(net), lr=1e-2)


def train(rank: int, world: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net: nn.Module = NanoGpt().double()
    ids = torch.randint(30, (STEPS, WORLD * BATCH, 8), generator=torch.Generator().manual_seed(1))
    part = slice(rank * BATCH, (rank + 1) * BATCH) if world > 1 else slice(None)
    ds.sparsify(net, ids[0, :2], kinds=("heads", "neurons"))
    gates = ds.replicate_gates(net)
    budget = ds.Budget(net, ids[0, :2], macs=0.7, steps=STEPS, due=0.6)
    if world > 1:
        shard(net, gates)
    optimizer, losses = optimizer_of(net), []
    for batch in ids[:, part]:
        given, wanted = batch[:, :-1], batch[:, 1:]
        loss = F.cross_entropy(net(given).flatten(0, 1), wanted.flatten()) + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if budget.step(optimizer):
            net = budget.small.model
            if world > 1:
                shard(net)
            # moments of a sharded optimiser are not carried over
            optimizer = optimizer_of(net)
    whole = ds.gathered(net)
    again = ds.compact(whole, ids[0, :2]).after
    return {"losses": losses, "cost": budget.cost, "state": whole.state_dict(), "macs": again.macs}


def refusals(rank: int) -> list[str]:
    torch.manual_seed(0)
    net, ids = NanoGpt(), torch.randint(30, (2, 8))
    ds.sparsify(net, ids, kinds="neurons")
    gates = ds.replicate_gates(net)
    budget = ds.Budget(net, ids, macs=0.9, steps=1, due=1.0, shrinks=1)
    budget._shrinks_at, budget.due = {1, 2}, 2
    shard(net, gates)
    found = []
    for call in (
        lambda: ds.Budget(net, ids, macs=0.5, steps=3),
        lambda: ds.compact(net, ids),
        lambda: budget.step(torch.optim.SGD(net.parameters(), lr=0.1)),
    ):
        with pytest.raises(SparsityError) as error:
            call()
        found.append(str(error.value))
    return found


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    method = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    torch.save((train(rank, WORLD), refusals(rank)), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(worker, args=(str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def test_two_processes_have_the_losses_of_one_and_the_same_small_model(ranks: list[Any]) -> None:
    one = train(0, 1)
    mean = [sum(both) / WORLD for both in zip(*(rank["losses"] for rank, _ in ranks), strict=True)]
    assert mean == pytest.approx(one["losses"], abs=1e-5)
    assert 0.6 < one["cost"]["macs"] <= 0.7
    for rank, _ in ranks:
        assert rank["cost"] == one["cost"]
        assert rank["macs"] == one["macs"]
        assert rank["state"].keys() == one["state"].keys()
        for key, value in one["state"].items():
            torch.testing.assert_close(rank["state"][key], value, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_done_with_shards_is_said(ranks: list[Any]) -> None:
    for _, (early, compacted, shrinks) in ranks:
        assert "make the budget first, then shard the model" in early
        assert "is sharded over processes; compact ds.gathered(model)" in compacted
        assert "a sharded model becomes small once" in shrinks
