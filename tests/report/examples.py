"""Runs that nobody trained, as they would be on the disk."""

import json
import math
from pathlib import Path
from typing import Any

from diffsparse.training import Recipe, Sparsifying
from diffsparse.training.command import train_command

LAYERS = ("stem", "stages.0.0.conv1", "stages.0.0.conv2", "stages.1.0.conv1", "stages.1.0.conv2", "classifier")


def result(seed: int = 0, method: str = "ds", share: float = 0.5, layers: int = 6) -> dict[str, Any]:
    """The result of a run that left `share` of everything; its third layer is gone."""
    recipe = Recipe(seed=seed, epochs=8, sparsifying=Sparsifying(method=method, macs=share if method == "ds" else None))
    names = [LAYERS[i] if layers == len(LAYERS) else f"stages.{i // 18}.{i % 18}.conv1" for i in range(layers)]
    rows = []
    for i, name in enumerate(names):
        width = 16 * (1 + i)
        left = 0 if i == 2 else math.ceil(width * share)
        rows.append(
            {
                "name": name,
                "kind": "Linear" if name == "classifier" else "Conv2d 3x3",
                "inputs": [width, left],
                "outputs": [width, left],
                "params": [9 * width * width, 9 * left * left],
                "macs": [900 * width * width, 900 * left * left],
            }
        )
    time = {"lower_quartile": 1e-3, "upper_quartile": 1.1e-3, "runs": 40}
    return {
        "command": train_command(recipe),
        "config": recipe.as_dict(),
        "environment": {"diffsparse": "0.2.0", "torch": "2.13.0", "python": "3.11.7", "gpu": None},
        "figures": {name: {"loss": 0.1, "accuracy": 0.9 + 0.001 * seed} for name in ("trained", "compact")},
        "headline": "accuracy",
        "asked": {"macs": share} if method == "ds" else {},
        "strength": None,
        "zeros": {"zero": 10, "total": 40, "fraction": 0.25},
        "cost": {
            "plain": {"macs": 2_000_000, "params": 300_000, "bytes": 1_200_000, "file_bytes": 1_210_000},
            "compact": {
                "macs": int(2_000_000 * share),
                "params": 200_000,
                "bytes": 800_000,
                "file_bytes": 810_000,
            },
        },
        "latency": {
            "plain": {"median": 2e-3} | time,
            "compact": {"median": 1e-3} | time,
            "device": "cpu",
            "threads": 1,
            "input": "float32 1x1x8x8",
        },
        "layers": rows,
        "max_difference": 1e-7,
        "training_seconds": {"train": 60.0 + seed},
    }


def log(epochs: int = 8, share: float = 0.5) -> list[dict[str, Any]]:
    """One record per epoch; the network becomes small in the middle."""
    records = []
    for epoch in range(1, epochs + 1):
        cost = max(share, 1 - 2 * (1 - share) * epoch / epochs)
        record = {
            "phase": "train",
            "epoch": epoch,
            "train_loss": 2 / epoch,
            "test_loss": 2.2 / epoch,
            "test_accuracy": 1 - 1 / (epoch + 1),
            "macs_share": cost,
            "params_share": (1 + cost) / 2,
            "macs": int(2_000_000 * cost),
            "seconds": 7.0 * epoch,
        }
        if epoch == (epochs + 1) // 2:
            record["shrunk"] = [epochs / 2]
        records.append(record)
    return records


def write_run(folder: Path, content: dict[str, Any] | None = None, epochs: int = 8) -> Path:
    """A folder as a finished run leaves it."""
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result() if content is None else content))
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log(epochs)))
    return folder
