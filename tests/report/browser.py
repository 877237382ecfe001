"""A real Chromium without a window, driven over a pipe: no library, no port, no network."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE = 60.0
"""Seconds to wait for an answer."""


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a fresh profile; notes what is logged and requested."""

    def __init__(self, executable: str) -> None:
        self.executable, self._number, self._buffer, self._session = executable, 0, b"", ""
        self.problems: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (into, self._write), (self._read, out) = (tuple(map(_high, os.pipe())) for _ in range(2))
        # Chromium reads commands from 3 and writes answers to 4
        start = f"import os, sys; os.dup2({into}, 3); os.dup2({out}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        profile = f"--user-data-dir={self._profile.name}"
        command = [sys.executable, "-c", start, self.executable, *FLAGS, profile, "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(into, out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        os.close(into)
        os.close(out)
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # the processes of this browser alone, which are a group of their own
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        _write_all(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, "Chromium does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(given["exceptionDetails"].get("exception", given)))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"console.{given['type']}: {given['args']}")

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> float:
        """Show a file; returns the milliseconds from the start of the navigation to the end of loading."""
        mobile = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self.run("document.readyState === 'complete' && performance.timing.loadEventEnd > 0"):
            time.sleep(0.02)
        return float(self.run("performance.getEntriesByType('navigation')[0].loadEventEnd"))

    def run(self, script: str) -> Any:
        """The value of a piece of JavaScript, as plain data."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to an element and say where its middle is."""
        place = f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
        place += "e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'}); "
        place += "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        x, y = self.run(place)
        return x, y

    def move(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """A real click, which only reaches what is not covered."""
        x, y = self.middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        self.run("scrollTo(0, 0)")
        image = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))


def _high(descriptor: int) -> int:
    """The same pipe with a number that does not get in the way of 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(descriptor)
    return moved


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
