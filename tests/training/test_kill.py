"""Processes that are really killed, terminated and interrupted; what they leave behind; and going on from there."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diffsparse.training.folder import Log, RunFolder
from diffsparse.training.snapshot import Snapshot
from tests.training.children import command, finished, started, wait_for
from tests.training.examples import NET, outcome

DIGITS = ["train", "--model", "preresnet8-0.25", "--epochs", "3", "--batch-size", "192", "--strength", "1e-3"]
SMALL = ["train", "--model", NET, "--epochs", "3", "--batch-size", "16", "--ema", "0.9", "--strength", "1e-3"]
# small from the middle of the sixth epoch on
BUDGET = [
    "train",
    "--model",
    NET,
    "--epochs",
    "12",
    "--batch-size",
    "16",
    "--ema",
    "0.9",
    "--macs",
    "0.6",
    "--due",
    "0.45",
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the runs come to when nothing happens to them."""
    found = {}
    for name, arguments in (("digits", DIGITS), ("small", SMALL), ("budget", BUDGET)):
        folder = tmp_path_factory.mktemp(name) / "run"
        process = started(begin, arguments, folder, name != "digits")
        assert finished(process) == 0
        found[name] = outcome(folder)
    return found


def begin(arguments: list[str], folder: Path, small: bool, kill_at_sync: int = 0) -> None:
    words = folder.with_name("words")
    command([*arguments, "--output", str(folder)], words, small=small, kill_at_sync=kill_at_sync)


def epochs_done(folder: Path) -> int:
    """Epochs in the newest checkpoint, which must be whole; a kill costs no more than the epoch at hand."""
    logged = len(Log(path=folder / "log.jsonl").records())
    paths = RunFolder(folder).snapshots()
    done = Snapshot.read(paths[0]).progress.epoch if paths else 0
    assert logged - 1 <= done <= logged
    return done


def check_clean(folder: Path) -> None:
    assert list(folder.rglob("*.tmp")) == []
    assert [path.name for path in RunFolder(folder).snapshots()] != []


def test_killed_at_random_moments(expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    folder, moments = tmp_path / "run", random.Random(5)
    done = 0
    for _ in range(5):
        process = started(begin, [*DIGITS, "--resume"], folder, False)
        wait_for((folder / "config.toml").exists, process)
        # from the very start to beyond the end of the next epoch
        before = len(Log(path=folder / "log.jsonl").records())
        if moments.random() < 0.6:
            wait_for(lambda before=before: len(Log(path=folder / "log.jsonl").records()) > before, process)
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        process.join()
        now = epochs_done(folder)
        assert now >= done
        done = now
    assert finished(started(begin, [*DIGITS, "--resume"], folder, False)) == 0
    assert outcome(folder) == expected["digits"]
    check_clean(folder)


def test_killed_before_and_after_the_network_became_small(expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    folder, moments = tmp_path / "run", random.Random(7)
    records = Log(path=folder / "log.jsonl").records
    small = []
    for epoch in (1, 3, 5, 7, 9):
        process = started(begin, [*BUDGET, "--resume"], folder, True)
        wait_for(lambda epoch=epoch: folder.exists() and len(records()) > epoch, process)
        time.sleep(moments.uniform(0, 0.03))
        process.kill()
        process.join()
        epochs_done(folder)
        small.append(not any(".gate." in name for name in Snapshot.read(RunFolder(folder).snapshots()[0]).tensors))
    assert small[0] is False
    assert small[-1] is True
    assert finished(started(begin, [*BUDGET, "--resume"], folder, True)) == 0
    assert outcome(folder) == expected["budget"]
    check_clean(folder)


def test_killed_in_the_middle_of_writing(expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    # each file is synced before it gets its name, and its folder after: the configuration, the log, the checkpoints
    folder = tmp_path / "run"
    drafts = 0
    for number in (1, 2, 3, 5, 6, 7, 8, 6):
        process = started(begin, [*SMALL, "--resume"], folder, True, number)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        drafts += len(list(folder.rglob(".diffsparse-*.tmp")))
        if (folder / "config.toml").exists():
            epochs_done(folder)
    assert drafts > 2
    assert finished(started(begin, [*SMALL, "--resume"], folder, True)) == 0
    assert outcome(folder) == expected["small"]
    check_clean(folder)


def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    expected: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = started(begin, DIGITS, folder, False)
    wait_for(lambda: len(RunFolder(folder).snapshots()) == 2, process)
    process.kill()
    process.join()
    newest, before = RunFolder(folder).snapshots()[:2]
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    assert finished(started(begin, [*DIGITS, "--resume"], folder, False)) == 0
    assert f"skipping a checkpoint: '{newest}' is truncated" in (tmp_path / "words.err").read_text()
    assert f"going on from '{before}'" in (tmp_path / "words.out").read_text()
    assert outcome(folder) == expected["digits"]


def test_ctrl_c_keeps_a_checkpoint_and_tells_how_to_go_on(expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = started(begin, DIGITS, folder, False)
    wait_for(lambda: Log(path=folder / "log.jsonl").records(), process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert finished(process) == 130
    words = (tmp_path / "words.err").read_text()
    assert words == f"diffsparse: stopped by SIGINT; the same command with --resume goes on from '{folder}'\n"
    assert finished(started(begin, [*DIGITS, "--resume"], folder, False)) == 0
    assert outcome(folder) == expected["digits"]


def test_sigterm_to_the_command_itself(expected: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "diffsparse", *DIGITS, "--threads", "1", "--output", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ends = time.monotonic() + 100
    while not Log(path=folder / "log.jsonl").records() and process.poll() is None:
        assert time.monotonic() < ends
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate(timeout=100)
    assert process.returncode == 143
    assert errors == f"diffsparse: stopped by SIGTERM; the same command with --resume goes on from '{folder}'\n"
    assert "train epoch 1/3: loss" in printed
    assert epochs_done(folder) < 3
    # the flags are in the folder, too: no need to give them again
    assert finished(started(begin, ["train", "--resume"], folder, False)) == 0
    found = outcome(folder)
    config, words = found["result"].pop("config"), found["result"].pop("command").removesuffix(" --threads 1")
    assert config["hardware"].pop("threads") == 1
    assert {**found["result"], "config": config, "command": words} == expected["digits"]["result"]
    assert found["files"] == expected["digits"]["files"]
    assert json.loads((folder / "result.json").read_text())["config"]["hardware"]["threads"] == 1
