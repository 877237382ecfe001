"""How long calls take, timed in turns."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import torch

from diffsparse.errors import SparsityError, require_number, require_whole


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Wall-clock time of one call, in seconds."""

    median: float
    """Half of the runs were faster."""
    lower_quartile: float
    """A quarter of the runs were faster."""
    upper_quartile: float
    """A quarter of the runs were slower."""
    runs: int
    """How many calls were timed, after the warm-up."""

    @classmethod
    def of(cls, times: Sequence[float]) -> "Latency":
        """Summarise two or more times."""
        lower, _, upper = quantiles(times, n=4, method="inclusive")
        return cls(median=median(times), lower_quartile=lower, upper_quartile=upper, runs=len(times))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        low, high = 1e3 * self.lower_quartile, 1e3 * self.upper_quartile
        return f"{1e3 * self.median:.3f} ms (quartiles {low:.3f} to {high:.3f}, {self.runs} runs)"


def time_interleaved(
    calls: Sequence[Callable[[], object]],
    *,
    device: torch.device,
    seconds: float = 1.0,
    warmup: int = 3,
    min_runs: int = 10,
) -> tuple[Latency, ...]:
    """Time every call once a round, so that a change in the machine's load falls on all of them alike.

    Every other round runs backwards, so that none always comes after the same neighbour. Work queued on an
    accelerator is awaited before the clock starts and before it stops.

    Args:
        calls: what to time.
        device: where the work is done.
        seconds: rounds go on until this much time for each call has been measured.
        warmup: rounds before the timing.
        min_runs: the least number of timed rounds, at least 2.

    Example:
        >>> fast, slow = time_interleaved([lambda: None, lambda: time.sleep(0.001)], device=torch.device("cpu"),
        ...                               seconds=0.01)
        >>> fast.median < slow.median, fast.runs == slow.runs
        (True, True)
    """
    require_number("seconds", seconds, low=0)
    require_whole("warmup", warmup, low=0)
    require_whole("min_runs", min_runs, low=2)
    if device.type == "meta":
        raise SparsityError("nothing is computed on the meta device, so there is no time to take; pass latency=False")
    synchronize = torch.get_device_module(device).synchronize
    for _ in range(warmup):
        for call in calls:
            call()
    times: list[list[float]] = [[] for _ in calls]
    order = list(zip(calls, times, strict=True))
    spent, rounds = 0.0, 0
    while rounds < min_runs or spent < seconds * len(calls):
        for call, record in order:
            synchronize()
            start = time.perf_counter()
            call()
            synchronize()
            record.append(time.perf_counter() - start)
            spent += record[-1]
        order.reverse()
        rounds += 1
    return tuple(Latency.of(record) for record in times)
