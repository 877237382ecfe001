"""Makes batches in the background while the previous one is used."""

import threading
from collections.abc import Generator
from contextlib import closing
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

T = TypeVar("T")

THREAD_NAME = "diffsparse-batches"


class _End(NamedTuple):
    """The last item in the queue, with the error that ended the source, if any."""

    error: BaseException | None


def prefetched(items: Generator[T, None, None], depth: int = 2) -> Generator[T, None, None]:
    """The same items; a thread makes up to `depth` of them before they are asked for.

    An error of `items` is raised where its item would have come. The thread starts with the first item and ends with
    this generator, whether that is used up, closed, dropped or left by an error.

    Example:
        >>> list(prefetched(number**2 for number in range(4)))
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
        # the garbage collector may close this generator on the thread itself
        if thread is not threading.current_thread():
            thread.join()
