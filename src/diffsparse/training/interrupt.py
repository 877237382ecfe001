"""Signals that ask a run to end: it finishes the step at hand and keeps a checkpoint."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """While it is entered, SIGINT and SIGTERM only raise a flag; a second SIGINT is the usual KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def __enter__(self) -> Self:
        # only the main thread may set handlers; elsewhere signals keep their meaning
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
