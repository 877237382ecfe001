"""How long calls take, timed in turns."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any, TypedDict, Unpack

import torch

from diffsparse.errors import SparsityError, require_number, require_whole


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Wall-clock time of one call in seconds: median and quartiles over `runs` calls after the warm-up."""

    median: float
    lower_quartile: float
    upper_quartile: float
    runs: int

    @classmethod
    def of(cls, times: Sequence[float]) -> "Latency":
        """Summarise two or more times."""
        lower, _, upper = quantiles(times, n=4, method="inclusive")
        return cls(median=median(times), lower_quartile=lower, upper_quartile=upper, runs=len(times))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        low, high = 1e3 * self.lower_quartile, 1e3 * self.upper_quartile
        return f"{1e3 * self.median:.3f} ms (quartiles {low:.3f} to {high:.3f}, {self.runs} runs)"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Time of a call as a share of another one's, both timed in turns: the median over rounds of their ratio."""

    median: float
    error: float
    """How far off it may be, as a share of it: about its standard error, or how much it changed on the way."""
    rounds: int

    @classmethod
    def of(cls, own: Sequence[float], other: Sequence[float]) -> "Share":
        """From the seconds of both calls in two or more rounds.

        Example:
            >>> Share.of([1.0, 1.0, 9.0, 1.0], [2.0, 2.0, 18.0, 2.0])
            Share(median=0.5, error=0.0, rounds=4)
        """
        ratios = [a / b for a, b in zip(own, other, strict=True)]
        lower, middle, upper = quantiles(ratios, n=4, method="inclusive")
        # for normal noise, the median is off by 1.25 standard deviations over the root, and quartiles are 1.35 apart
        by_chance = 1.25 / 1.35 * (upper - lower) / len(ratios) ** 0.5
        half = len(ratios) // 2
        drift = abs(median(ratios[:half]) - median(ratios[half:])) / 2
        return cls(median=middle, error=max(by_chance, drift) / middle, rounds=len(ratios))

    def __str__(self) -> str:
        return f"{self.median:.1%} (± {self.median * self.error:.1%}, {self.rounds} rounds)"


def shares_of_first(
    calls: Sequence[Callable[[], object]],
    *,
    device: torch.device,
    seconds: float,
    most: float,
    error: float,
    min_runs: int = 10,
) -> list[Share]:
    """Times of all calls as shares of the first one's.

    They are timed in turns for about `seconds` per call, and again until every share is known up to `error`, but for no
    more than `most` seconds per call: other work on the machine is noticed by the spread of the ratios.
    """
    times: list[list[float]] = [[] for _ in calls]
    began, warmup = time.perf_counter(), 3
    while True:
        for record, more in zip(
            times,
            interleaved_seconds(calls, device=device, seconds=seconds, warmup=warmup, min_runs=min_runs, own_time=True),
            strict=True,
        ):
            record += more
        shares, warmup = [Share.of(own, times[0]) for own in times], 0
        if max(share.error for share in shares) <= error or time.perf_counter() - began > most * len(calls):
            return shares


def quiet_seconds(times: Sequence[float]) -> float:
    """What a call takes while nothing else runs: the median of the fastest quarter, to decide by on a busy machine.

    Example:
        >>> quiet_seconds([5.0, 1.0, 90.0, 1.1, 7.0, 60.0, 1.2, 80.0, 70.0, 50.0, 40.0, 30.0])
        1.1
    """
    return median(sorted(times)[: max(len(times) // 4, 1)])


class Timing(TypedDict, total=False):
    """Options of `interleaved_seconds`, which has their defaults."""

    seconds: float
    warmup: int
    min_runs: int
    own_time: bool


def time_interleaved(
    calls: Sequence[Callable[[], object]], *, device: torch.device, **timing: Unpack[Timing]
) -> tuple[Latency, ...]:
    """Time the calls in turns and summarise the times of each; the arguments are those of `interleaved_seconds`."""
    return tuple(Latency.of(times) for times in interleaved_seconds(calls, device=device, **timing))


def interleaved_seconds(
    calls: Sequence[Callable[[], object]],
    *,
    device: torch.device,
    seconds: float = 1.0,
    warmup: int = 3,
    min_runs: int = 10,
    own_time: bool = False,
    before: Callable[[], object] = lambda: None,
) -> list[list[float]]:
    """The seconds of each call in each round; a round makes every call once.

    So a change in the machine's load affects all calls alike. The order changes from round to round, because caches
    and memory depend on the previous call. Work queued on `device` is awaited before the clock starts and before it
    stops. After `warmup` untimed rounds, there are at least `min_runs` timed ones (2 or more), and they go on until
    `seconds` have passed per call. With `own_time`, only the time in which the thread really runs counts, where
    that is all there is, on the CPU with one thread: other work on a busy machine then makes hardly any difference.
    `before` runs before each call, and is not timed.
    """
    require_number("seconds", seconds, low=0)
    require_whole("warmup", warmup, low=0)
    require_whole("min_runs", min_runs, low=2)
    if device.type == "meta":
        raise SparsityError("nothing runs on the meta device, so there is no time to measure; pass latency=False")
    synchronize = torch.get_device_module(device).synchronize
    alone = own_time and device.type == "cpu" and torch.get_num_threads() == 1
    now = time.thread_time if alone else time.perf_counter
    for _ in range(warmup):
        for call in calls:
            call()
    times: list[list[float]] = [[] for _ in calls]
    order, shuffler = list(zip(calls, times, strict=True)), random.Random(0)
    began, rounds = time.perf_counter(), 0
    while rounds < min_runs or time.perf_counter() - began < seconds * len(calls):
        for call, record in order:
            before()
            synchronize()
            start = now()
            call()
            synchronize()
            record.append(now() - start)
        rounds += 1
        # reversing alone would often put the first and the last of many calls after themselves
        if rounds % 2 == 0 and len(order) > 2:
            shuffler.shuffle(order)
        else:
            order.reverse()
    return times
