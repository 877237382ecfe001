"""The log of a run for TensorBoard, in one event file."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diffsparse.errors import CheckpointError, import_extra
from diffsparse.files import replacing

NAME = "events.out.tfevents.diffsparse"
"""TensorBoard takes files with `tfevents` in their name."""


class Board:
    """The event file in `folder`: every number of a record, and a curve per layer where it has widths."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def check(self) -> None:
        """Raise if TensorBoard is not installed."""
        _library("summary.writer.record_writer")

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record; the file is whole and closed when this returns."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as file:
                _write(file, _events([record], header=file.tell() == 0))
        except OSError as error:
            raise CheckpointError(f"cannot write '{self.path}': {error.strerror or error}") from error

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace the file by one with these records."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot write '{self.path}': {error.strerror or error}") from error
        with replacing(self.path) as file:
            _write(file, _events(records, header=True))


def _library(module: str) -> Any:
    return import_extra(f"tensorboard.{module}", "--tensorboard needs TensorBoard", "tensorboard")


def _write(file: Any, events: Iterable[Any]) -> None:
    writer = _library("summary.writer.record_writer").RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())


def _events(records: Iterable[Mapping[str, Any]], *, header: bool) -> Iterable[Any]:
    event, summary = _library("compat.proto.event_pb2").Event, _library("compat.proto.summary_pb2").Summary
    now = time.time()
    if header:
        yield event(wall_time=now, file_version="brain.Event:2")
    for record in records:
        values = [summary.Value(tag=tag, simple_value=number) for tag, number in _numbers(record).items()]
        yield event(wall_time=now, step=record["epoch"], summary=summary(value=values))


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    phase = record["phase"]
    plain = {f"{phase}/{key}": value for key, value in record.items() if isinstance(value, int | float)}
    layers = {f"{phase}_widths/{layer}": width for layer, width in (record.get("widths") or {}).items()}
    return plain | layers
