"""A line of JSON for each epoch, and TensorBoard where it is installed."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsparse.errors import CheckpointError, SparsityError
from diffsparse.files import write_text


@dataclass(frozen=True, kw_only=True)
class Log:
    """Appends records to a file."""

    path: Path
    """The file of JSON lines."""
    tensorboard: Path | None = None
    """Folder for TensorBoard; None without it."""

    def check(self) -> None:
        """Raise now rather than after an epoch if TensorBoard is asked for and missing."""
        if self.tensorboard is not None:
            self._summary_writer()

    def add(self, record: dict[str, Any]) -> None:
        """One line; on the disk when this returns."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"cannot write '{self.path}': {error.strerror or error}") from error
        if self.tensorboard is not None:
            # closed each time: what is written is then on the disk, and no thread is left behind
            with self._summary_writer()(str(self.tensorboard)) as writer:
                for key, value in record.items():
                    if isinstance(value, int | float):
                        writer.add_scalar(f"{record['phase']}/{key}", value, record["epoch"])

    def records(self) -> list[dict[str, Any]]:
        """All records; a last line that a killed process left half-written is passed over."""
        found = []
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def forget_after(self, phase: str, epoch: int) -> None:
        """Drop records of epochs of `phase` after `epoch`, which a resumed run writes again."""
        kept = [record for record in self.records() if record["phase"] != phase or record["epoch"] <= epoch]
        write_text(self.path, "".join(f"{json.dumps(record)}\n" for record in kept))

    def _summary_writer(self) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SparsityError(
                "TensorBoard is not installed; install it with: pip install 'diffsparse[tensorboard]'"
            ) from None
        return SummaryWriter
