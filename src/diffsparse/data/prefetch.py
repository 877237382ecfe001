"""Batches made in the background while the one before them is used."""

import threading
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

THREAD_NAME = "diffsparse-batches"


@dataclass(frozen=True)
class _End:
    """Nothing follows, for the reason given or because all is done."""

    error: BaseException | None


def ahead(items: Generator[T, None, None], depth: int = 2) -> Generator[T, None, None]:
    """The same items, up to `depth` of them made by a thread before they are asked for.

    An error of `items` is raised where its item would have come. The thread begins with the first item and has ended
    when this generator has: used up, closed, dropped or left by an error.

    Example:
        >>> list(ahead(number**2 for number in range(4)))
        [0, 1, 4, 9]
    """
    ready: SimpleQueue[T | _End] = SimpleQueue()
    room = threading.Semaphore(depth - 1)
    stopped = threading.Event()

    def make() -> None:
        try:
            with closing(items):
                for item in items:
                    ready.put(item)
                    room.acquire()
                    if stopped.is_set():
                        return
            ready.put(_End(None))
        except BaseException as error:
            ready.put(_End(error))

    # a daemon: a traceback that keeps this generator alive must not keep the process alive
    thread = threading.Thread(target=make, name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        room.release()
        # the collector of reference cycles may close this generator on the very thread
        if thread is not threading.current_thread():
            thread.join()
