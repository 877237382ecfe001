"""Runs on the digits that end in one file: the training, and the record of what is there."""

import json
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

import diffsparse as ds
from diffsparse.data import DataSet

EPOCHS, BATCH = 15, 64


def steps_of(data: DataSet) -> int:
    """Steps of a whole training."""
    return len(data.train) // BATCH * EPOCHS


def trained(model: nn.Module, optimizer: Optimizer, budget: ds.Budget | None, data: DataSet, seed: int) -> float:
    """Train along one cosine, with the budget if there is one; returns the accuracy."""
    schedule = CosineAnnealingLR(optimizer, steps_of(data))
    for epoch in range(EPOCHS):
        for x, y in data.train.shuffled(BATCH, seed=seed, epoch=epoch):
            loss = F.cross_entropy(model(x), y)
            if budget is not None:
                loss = loss + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if budget is not None:
                budget.step(optimizer)
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float() for x, y in data.test.in_order(256)]
    return torch.cat(right).mean().item()


def known_runs(path: Path) -> list[dict[str, Any]]:
    """The runs that are in a file already."""
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    return runs


def write_runs(path: Path, config: dict[str, Any], rows: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    """Write a table and the runs that it was made from, with settings and versions."""
    versions = {"torch": torch.__version__, "python": platform.python_version(), "diffsparse": ds.__version__}
    content = {"config": {"epochs": EPOCHS, "batch": BATCH} | config, "versions": versions, "rows": rows, "runs": runs}
    path.write_text(json.dumps(content, indent=1) + "\n")
