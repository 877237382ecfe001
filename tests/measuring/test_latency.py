import time

import pytest
import torch

from diffsparse import SparsityError
from diffsparse.measuring.latency import Latency, Share, interleaved_seconds, shares_of_first, time_interleaved

CPU = torch.device("cpu")


class Clock:
    """Time that only passes in calls."""

    def __init__(self, monkeypatch):
        self.now, self.log = 0.0, []
        for name in ("perf_counter", "thread_time"):
            monkeypatch.setattr(time, name, lambda: self.now)

    def call(self, name, *durations):
        left = list(durations)

        def run():
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_calls_take_turns_and_change_places(clock):
    a, b = time_interleaved([clock.call("a", 1.0), clock.call("b", 2.0)], device=CPU, seconds=0, warmup=1, min_runs=3)
    assert "".join(clock.log) == "ab" + "ab" + "ba" + "ab"
    assert (a.median, b.median, a.runs, b.runs) == (1, 2, 3, 3)


def test_many_calls_get_a_new_order_every_second_round(clock):
    calls = [clock.call(name, duration) for name, duration in zip("abcd", (1.0, 2.0, 3.0, 4.0), strict=True)]
    times = interleaved_seconds(calls, device=CPU, seconds=0, warmup=0, min_runs=8)
    assert times == [[1.0] * 8, [2.0] * 8, [3.0] * 8, [4.0] * 8]
    rounds = ["".join(clock.log[start : start + 4]) for start in range(0, 32, 4)]
    assert rounds[0] == "abcd"
    assert all(sorted(order) == list("abcd") for order in rounds)
    assert all(back == there[::-1] for there, back in zip(rounds[::2], rounds[1::2], strict=True))
    assert len(set(rounds[::2])) > 2


def test_warmup_is_not_timed(clock):
    (found,) = time_interleaved([clock.call("a", 90.0, 80.0, 1.0)], device=CPU, seconds=0, warmup=2, min_runs=4)
    assert found == Latency(median=1, lower_quartile=1, upper_quartile=1, runs=4)


def test_it_goes_on_for_the_time_asked(clock):
    a, _ = time_interleaved([clock.call("a", 0.25), clock.call("b", 0.75)], device=CPU, seconds=4, min_runs=2)
    assert a.runs == 8


def test_quartiles():
    found = Latency.of([0.005, 0.001, 0.003, 0.002, 0.004])
    assert (found.lower_quartile, found.median, found.upper_quartile) == (0.002, 0.003, 0.004)
    assert str(found) == "3.000 ms (quartiles 2.000 to 4.000, 5 runs)"
    assert found.as_dict() == {"median": 0.003, "lower_quartile": 0.002, "upper_quartile": 0.004, "runs": 5}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": -1}, "seconds"),
        ({"seconds": float("inf")}, "got inf"),
        ({"seconds": float("nan")}, "got nan"),
        ({"seconds": "a"}, "seconds must be a finite number of at least 0, got 'a'"),
        ({"warmup": -1}, "warmup"),
        ({"warmup": 0.5}, "warmup"),
        ({"min_runs": 1}, "min_runs"),
        ({"device": torch.device("meta")}, "latency=False"),
    ],
)
def test_wrong_arguments(wrong, message):
    with pytest.raises(SparsityError, match=message):
        time_interleaved([lambda: None], **({"device": CPU} | wrong))


def test_queued_work_is_awaited_inside_the_clock(clock, monkeypatch):
    queue = []

    def synchronize():
        clock.now += sum(queue)
        queue.clear()

    monkeypatch.setattr(torch.cpu, "synchronize", synchronize)
    (found,) = time_interleaved([lambda: queue.append(3.0)], device=CPU, seconds=0, warmup=1, min_runs=2)
    assert found.median == found.upper_quartile == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda():
    x = torch.rand(4096, 4096, device="cuda")
    small, large = time_interleaved([lambda: x[:64] @ x, lambda: x @ x @ x], device=x.device, seconds=0.2)
    assert small.median < large.median


def test_shares_are_ratios_within_rounds(clock):
    a, b = clock.call("a", 0, 0, 0, 2.0, 4.0, 8.0, 2.0, 2.0), clock.call("b", 0, 0, 0, 1.0, 2.0, 4.0, 1.0, 1.0)
    whole, half = shares_of_first([a, b], device=CPU, seconds=0, most=0, error=0.01, min_runs=5)
    assert (whole, half) == (Share(median=1, error=0, rounds=5), Share(median=0.5, error=0, rounds=5))


def test_the_more_noise_the_more_rounds_until_the_time_is_over(clock):
    quiet = clock.call("a", 1.0)
    sure = shares_of_first([quiet, clock.call("b", 2.0)], device=CPU, seconds=0, most=1000, error=0.01, min_runs=10)
    assert sure[1].rounds == 10
    noisy = clock.call("b", 0, 0, 0, *(1.0 + 3 * (number * 7919 % 11 / 11) for number in range(2000)))
    some = shares_of_first([quiet, noisy], device=CPU, seconds=0, most=50, error=0.01, min_runs=10)
    more = shares_of_first([quiet, noisy], device=CPU, seconds=0, most=500, error=0.01, min_runs=10)
    assert 10 < some[1].rounds < more[1].rounds
    assert more[1].error < some[1].error
    assert more[1].median == pytest.approx(2.4, abs=0.3)


def test_a_change_of_load_on_the_way_is_noticed():
    assert Share.of([1.0] * 8 + [2.0] * 8, [1.0] * 16).error > 0.3


def test_own_time_is_that_of_the_thread_if_there_is_one(monkeypatch):
    monkeypatch.setattr(time, "thread_time", lambda: 7.0)
    threads = torch.get_num_threads()
    try:
        for count, expected in ((1, True), (2, False)):
            torch.set_num_threads(count)
            (times,) = interleaved_seconds([lambda: None], device=CPU, seconds=0, min_runs=4, own_time=True)
            assert (times == [0.0] * 4) is expected
    finally:
        torch.set_num_threads(threads)
