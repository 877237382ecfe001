"""The command line as people expect it: help in a pipe, mistyped commands, Ctrl-C, completion."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diffsparse.cli.main import COMMANDS, main

COMMAND = [sys.executable, "-m", "diffsparse"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("trian", "diffsparse: there is no command 'trian'; did you mean 'train'?\n"),
        ("messure", "diffsparse: there is no command 'messure'; did you mean 'measure'?\n"),
        ("xyz", f"diffsparse: there is no command 'xyz'; there are {', '.join(COMMANDS)}\n"),
    ],
)
def test_a_mistyped_command_gets_one_sentence(typed: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([typed, "--epochs", "3"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == message


def test_completion_for_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--tyro-write-completion", "bash", str(tmp_path / "none" / "file")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith("none/file': make its folder first\n")


def test_a_pipe_that_is_closed_gets_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "--help"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_ctrl_c_in_a_terminal_starts_a_new_line(tmp_path: Path) -> None:
    terminal, side = pty.openpty()
    options = ["--model", "preresnet8-0.25", "--epochs", "500", "--threads", "1", "--output", "run"]
    there = {"cwd": tmp_path, "env": {**os.environ, "TERM": "xterm", "COLUMNS": "140"}}
    with subprocess.Popen([*COMMAND, "train", *options], stdin=side, stdout=side, stderr=side, **there) as run:
        os.close(side)
        try:
            seen = _read_until(terminal, b"images/s")
            # as a terminal does: it shows ^C where the cursor is, and sends the signal
            run.send_signal(signal.SIGINT)
            seen += _read_until(terminal, b"goes on from")
            assert run.wait(timeout=60) == 130
        finally:
            run.kill()
            os.close(terminal)
    assert b"loss " in seen
    before, words, _ = seen.partition(b"diffsparse: stopped by SIGINT")
    assert words
    assert re.search(rb"\n(\x1b\[[0-9;?]*[a-zA-Z])*$", before), before[-80:]


def _read_until(terminal: int, words: bytes) -> bytes:
    """What the terminal shows until these words are there, or until it is over."""
    seen, end = b"", time.monotonic() + 120
    while words not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                # Linux says so when nobody has the other side open
                break
    return seen


def test_the_shell_completes_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "diffsparse.bash"
    written = subprocess.run(
        [*COMMAND, "--tyro-print-completion", "bash"], capture_output=True, text=True, check=True, timeout=120
    )
    script.write_text(written.stdout)

    def completions(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        ask = f'source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE="{" ".join(words)}"; '
        ask += 'COMP_POINT=${#COMP_LINE}; _tyro_diffsparse; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.split("\n")

    assert "train" in completions("diffsparse", "tr")
    assert "--epochs" in completions("diffsparse", "train", "--ep")
    # a description of several lines would become several proposals
    for option in ("--macs", "--method", "--strength", "--target", "--retrain-epochs"):
        assert completions("diffsparse", "train", option[:-1]) == [option, ""]
    assert "\\n" not in next(line for line in written.stdout.splitlines() if line.startswith("COMPLETION_SPEC"))
