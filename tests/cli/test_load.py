"""A busy machine is told, because times mean little then."""

import os

import pytest

from diffsparse.cli.load import load_warning


@pytest.mark.parametrize(("load", "busy"), [(0.1, False), (2.5, False), (2.7, True), (9.0, True)])
def test_more_work_than_cores(load: float, busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert load_warning().startswith(f"the machine is busy (a load of {load:.1f} on 2 cores)" if busy else "")
    assert bool(load_warning()) == busy


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    assert load_warning() == ""
