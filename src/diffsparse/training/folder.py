"""The folder of a run: configuration, log, checkpoints, results."""

import json
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsparse.errors import CheckpointError, SparsityError, SparsityWarning
from diffsparse.files import write_text
from diffsparse.records import read_log
from diffsparse.training.board import Board
from diffsparse.training.config import Recipe, read_recipe, to_toml
from diffsparse.training.snapshot import Progress, Snapshot, Trained, write_snapshot

KEPT = 2
"""Checkpoints that stay."""


class RunFolder:
    """Where a run writes."""

    def __init__(self, path: Path) -> None:
        self.path, self._checkpoints = path, path / "checkpoints"
        self.config = path / "config.toml"
        """The full configuration, in the form that --config reads."""
        self.log = path / "log.jsonl"
        self.result = path / "result.json"
        """Figures of the finished run; exists once the run is over."""

    def begin(self, recipe: Recipe, resume: bool, needed: int) -> None:
        """Make the folder and write the configuration, or check that both are those of the run to resume.

        Raises, with nothing written, if the folder has no room for `needed` bytes.
        """
        if self.config.exists():
            if not resume:
                raise SparsityError(f"'{self.path}' already holds a run; give another --output, or --resume to go on")
            self._check_same(read_recipe(self.config), recipe)
        elif self.path.is_dir() and {*self.path.iterdir()} - {*self._drafts()}:
            raise SparsityError(f"'{self.path}' is not empty and holds no run; give another --output")
        self._make(self.path)
        free = shutil.disk_usage(self.path).free
        if free < needed:
            left, wanted = f"{free / 1e6:,.0f} MB left", f"{needed / 1e6:,.0f} MB"
            raise SparsityError(f"'{self.path}' has {left}, checkpoints and results need {wanted}")
        # first of all, so that a run that is killed from here on can be resumed
        write_text(self.config, to_toml(recipe))
        self._make(self._checkpoints)
        for draft in self._drafts():
            draft.unlink(missing_ok=True)

    def _make(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SparsityError(f"cannot make the folder '{path}': {error.strerror}") from error

    def _check_same(self, saved: Recipe, given: Recipe) -> None:
        before, now = _flat(saved.as_dict()), _flat(given.as_dict())
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                change = f"{key} = {before.get(key)}, not {now.get(key)}"
                raise SparsityError(f"'{self.path}' was begun with {change}; a run is resumed as it was begun")

    def _drafts(self) -> list[Path]:
        """What a killed process left half-written."""
        return [*self.path.glob(".diffsparse-*.tmp"), *self._checkpoints.glob(".diffsparse-*.tmp")]

    def snapshots(self) -> list[Path]:
        """Checkpoints, the newest first."""
        return sorted(self._checkpoints.glob("*.safetensors"), reverse=True)

    def write_snapshot(self, trained: Trained, progress: Progress, phase: str, number: int) -> Path:
        """Write a checkpoint, then remove all but the newest two. `number` tells the order of phases."""
        path = self._checkpoints / f"{number}-{phase}-{progress.epoch:05d}-{progress.step:07d}.safetensors"
        write_snapshot(path, trained, progress, phase)
        for old in self.snapshots()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def newest_snapshot(self) -> Snapshot | None:
        """The newest checkpoint that is whole; None if there is none."""
        for path in self.snapshots():
            try:
                return Snapshot.read(path)
            except CheckpointError as error:
                warnings.warn(f"skipping a checkpoint: {error}", SparsityWarning, stacklevel=2)
        return None

    def last_good(self) -> str:
        """The newest checkpoint in words, for messages."""
        paths = self.snapshots()
        return f"the last checkpoint is '{paths[0]}'" if paths else "there is no checkpoint yet"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


@dataclass(frozen=True, kw_only=True)
class Log:
    """One line of JSON per epoch, and TensorBoard if it is asked for."""

    path: Path
    board: Board | None = None
    """The same for TensorBoard; None without it."""

    def check(self) -> None:
        """Raise now rather than after an epoch if TensorBoard is asked for and missing."""
        if self.board is not None:
            self.board.check()

    def add(self, record: dict[str, Any]) -> None:
        """Append a line; it is on the disk when this returns."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"cannot write '{self.path}': {error.strerror or error}") from error
        if self.board is not None:
            self.board.add(record)

    def records(self) -> list[dict[str, Any]]:
        """All records, without a last line that a killed process left half-written."""
        return read_log(self.path)

    def forget_after(self, phase: str, epoch: int) -> None:
        """Drop records of epochs of `phase` after `epoch`, which a resumed run writes again."""
        kept = [record for record in self.records() if record["phase"] != phase or record["epoch"] <= epoch]
        write_text(self.path, "".join(f"{json.dumps(record)}\n" for record in kept))
        if self.board is not None:
            self.board.write(kept)
