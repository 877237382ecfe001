import signal
import threading

import pytest

from diffsparse.training.context import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_a_flag_and_handlers_come_back(number: int) -> None:
    before = signal.getsignal(number)
    with Interrupt() as interrupt:
        assert interrupt.signal is None
        signal.raise_signal(number)
        assert interrupt.signal is not None
        assert interrupt.signal == number
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_sigterm_waits_like_the_first() -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert interrupt.signal == signal.SIGTERM


def test_in_another_thread_signals_keep_their_meaning() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def enter() -> None:
        with Interrupt() as interrupt:
            found.append((signal.getsignal(signal.SIGTERM), interrupt.signal))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [(before, None)]
