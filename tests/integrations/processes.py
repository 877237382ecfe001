"""Run by torchrun: each framework trains in two processes, and each process writes what it has in the end."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import diffsparse as ds
from diffsparse.integrations.joining import renew
from tests.integrations.subjects import BATCH, Net, batches, dataset, made

HALF = {"steps": 12}
"""Two processes see twice as much per step."""


def result(net: Net, budget: ds.Budget) -> dict[str, Any]:
    return {"history": [asdict(look) for look in budget.history], "state": net.state_dict()}


def with_renewed_wrapper(rank: int, folder: Path) -> dict[str, Any]:
    """A plain loop, whose wrapper is renewed in place, against one that is wrapped by hand."""
    results = []
    for by_hand in (True, False):
        net, budget = made(**HALF)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        model = DistributedDataParallel(net, gradient_as_bucket_view=True)
        for x, y in list(batches())[rank::2] * 3:
            loss = F.cross_entropy(model(x), y) + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if budget.step(optimizer):
                if by_hand:
                    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
                else:
                    renew(model)
        results.append(result(net, budget))
    same = all(torch.equal(results[0]["state"][name], tensor) for name, tensor in results[1]["state"].items())
    return results[1] | {"same": same}


def with_lightning(rank: int, folder: Path) -> dict[str, Any]:
    from tests.integrations.test_lightning import BudgetCallback, Module, trainer

    net, budget = made(**HALF)
    trainer(BudgetCallback(budget), strategy="ddp", devices=2).fit(Module(net), batches())
    return result(net, budget)


def with_transformers(rank: int, folder: Path) -> dict[str, Any]:
    from tests.integrations.test_transformers import BudgetTrainer, arguments

    x, y = dataset()[:]
    data = [{"x": image, "labels": label} for image, label in zip(x, y, strict=True)]
    ends = []
    for resume in (None, str(folder / "run" / "checkpoint-8")):
        net, budget = made(**HALF)
        args = arguments(folder / "run", max_steps=12, save_steps=4, ddp_backend="gloo")
        BudgetTrainer(net, args, train_dataset=data, budget=budget).train(resume_from_checkpoint=resume)
        ends.append(result(net, budget))
    same = all(torch.equal(ends[0]["state"][name], tensor) for name, tensor in ends[1]["state"].items())
    return ends[1] | {"same": same}


def with_accelerate(rank: int, folder: Path) -> dict[str, Any]:
    from accelerate import Accelerator

    from diffsparse.integrations.accelerate import AcceleratedBudget

    net, given = made(**HALF)
    accelerator = Accelerator(cpu=True)
    budget = AcceleratedBudget(accelerator, given)
    loader = DataLoader(dataset(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), loader)
    for _ in range(3):
        for x, y in loader:
            accelerator.backward(F.cross_entropy(model(x), y) + budget.penalty())
            optimizer.step()
            optimizer.zero_grad()
            budget.step()
    assert isinstance(model, DistributedDataParallel)
    return result(net, given)


RUNS: dict[str, Callable[[int, Path], dict[str, Any]]] = {
    "wrapper": with_renewed_wrapper,
    "lightning": with_lightning,
    "transformers": with_transformers,
    "accelerate": with_accelerate,
}


def main() -> None:
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.save({name: RUNS[name](rank, folder) for name in names}, folder / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
