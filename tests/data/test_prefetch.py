import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffsparse.data
from diffsparse.data.prefetch import THREAD_NAME, prefetched

MODULE = Path(diffsparse.data.__file__).with_name("prefetch.py")


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert running() == []


class Source:
    """Counts what it made, and notes whether it was closed and by which thread."""

    def __init__(self) -> None:
        self.made, self.closed, self.closed_by = 0, False, ""

    def items(self, count: int, error: BaseException | None = None) -> Iterator[int]:
        try:
            for number in range(count):
                self.made += 1
                yield number
            if error is not None:
                raise error
        finally:
            self.closed, self.closed_by = True, threading.current_thread().name


def settled(source: Source) -> int:
    """How many items were made once nothing more is."""
    made = -1
    while made != source.made:
        made = source.made
        time.sleep(0.05)
    return made


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_items_come_in_order_and_not_too_far_ahead(depth: int) -> None:
    source = Source()
    items = prefetched(source.items(20), depth)
    assert source.made == 0
    assert next(items) == 0
    assert settled(source) == 1 + depth
    assert list(items) == list(range(1, 20))
    assert source.closed


def test_makes_an_item_while_the_one_before_is_used() -> None:
    def slow() -> Iterator[int]:
        for number in range(5):
            time.sleep(0.04)
            yield number

    began = time.perf_counter()
    for _ in prefetched(slow()):
        time.sleep(0.04)
    # one after the other would be 0.4 s at least
    assert time.perf_counter() - began < 0.36


def test_closing_ends_the_thread_and_the_source() -> None:
    source = Source()
    items = prefetched(source.items(10**9))
    next(items)
    assert len(running()) == 1
    items.close()
    assert running() == []
    # by the thread that used it, as a generator may not be closed while it runs
    assert source.closed_by == THREAD_NAME


def test_dropping_ends_the_thread() -> None:
    items = prefetched(Source().items(10**9))
    next(items)
    del items
    assert running() == []


def test_a_generator_that_was_never_used_has_no_thread() -> None:
    items = prefetched(Source().items(3))
    assert running() == []
    del items


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_error_of_the_user_ends_the_thread(kind: type[BaseException]) -> None:
    def use() -> None:
        for number in prefetched(Source().items(10**9)):
            if number == 3:
                raise kind

    with pytest.raises(kind):
        use()
    gc.collect()
    assert running() == []


def test_an_error_of_the_source_arrives_in_its_place() -> None:
    items = prefetched(Source().items(4, ValueError("broken")))
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_a_generator_in_a_cycle_is_collected_even_by_its_own_thread() -> None:
    collected = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        yield 1
        # made while nobody but the cycle holds the consumer
        dropped.wait()
        gc.collect()
        collected.set()
        yield 2

    dropped = threading.Event()
    items = prefetched(source(), depth=3)
    next(items)
    cycle: list[object] = [items]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle, items
        dropped.set()
        assert collected.wait(5)
    finally:
        gc.enable()
    for thread in running():
        thread.join(5)


def test_a_process_ends_although_something_holds_the_generator() -> None:
    # the module alone, without the package around it, is imported in no time
    code = (
        "import runpy\n"
        f"prefetched = runpy.run_path({str(MODULE)!r})['prefetched']\n"
        "items = prefetched(number for number in iter(int, 1))\n"
        "next(items)\n"
        "raise SystemExit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 3
