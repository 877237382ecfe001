"""Times of layers by their shapes, measured once per machine and kept in a file."""

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from diffsparse.errors import SparsityError
from diffsparse.example import Example
from diffsparse.files import require_path, write_json
from diffsparse.measuring.latency import Share, interleaved_seconds, shares_of_first
from diffsparse.measuring.layer_shape import LayerShape

FORMAT = 2
SECONDS, RUNS = 0.02, 9
"""How long, and how often at least, a layer is timed."""
BETWEEN = 1 << 20
"""Numbers that are read and written before a layer is timed: in a network, others have used the cache before it."""
NETWORK_SECONDS, NETWORK_RUNS, MOST, ERROR = 0.5, 11, 4.0, 0.01
"""The same for networks that are timed in turns; again, up to the third number, until shares are known so well."""


def default_path() -> Path:
    """The file of tables in the user's cache: `$XDG_CACHE_HOME/diffsparse/latency.json`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffsparse" / "latency.json"


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """The model of the processor, as the system calls it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class LatencyTable:
    """Seconds of layers; those that are not in the file yet are measured and added to it.

    The file is JSON: for each machine (processor, device, torch version, threads) the seconds by the name of a layer.
    With one thread it is the time in which the thread runs, so that other work on the machine hardly counts.
    It can be deleted at any time. A file that cannot be read counts as empty and is written anew.

    Args:
        path: the file; by default in the user's cache.
        device: where layers run.
        progress: called with how many layers are done, and of how many; by default a bar in a terminal.

    Example:
        >>> import tempfile
        >>> layer = LayerShape(kind="linear", inputs=8, outputs=4, batch=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = LatencyTable(Path(folder) / "latency.json")
        ...     print(table.layer_seconds([layer])[0] > 0, str(layer) in table.path.read_text())
        True True
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        device: torch.device | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.path = default_path() if path is None else Path(require_path(path))
        self.device = device or torch.device("cpu")
        self._progress = progress or _bar
        self._known: dict[str, float] | None = None

    @property
    def machine(self) -> str:
        """What the times depend on beside the layer."""
        threads = torch.get_num_threads()
        name = cpu_name() if self.device.type == "cpu" else torch.get_device_module(self.device).get_device_name()
        return f"{name}, {self.device.type}, torch {torch.__version__}, threads {threads}"

    def layer_seconds(self, shapes: Iterable[LayerShape]) -> list[float]:
        """Seconds of each layer, from the file or measured now."""
        wanted = list(shapes)
        known = self._now_known()
        missing = list({str(shape): shape for shape in wanted if str(shape) not in known}.items())
        try:
            for done, (name, shape) in enumerate(missing, 1):
                known[name] = self.time_layer(shape)
                self._progress(done, len(missing))
        finally:
            # what was measured is kept, also if somebody interrupts
            if missing:
                self._write()
        return [known[str(shape)] for shape in wanted]

    def seconds_of(self, name: str, measure: Callable[[], float]) -> float:
        """What `measure` gives, from the file if it has been measured before."""
        if name not in self._now_known():
            self._now_known()[name] = measure()
            self._write()
        return self._now_known()[name]

    def _now_known(self) -> dict[str, float]:
        if self._known is None:
            self._known = self._read().get(self.machine, {})
        return self._known

    def time_layer(self, shape: LayerShape) -> float:
        """Seconds of a layer like this, as it is in a network: not straight after itself."""
        with torch.no_grad(), torch.random.fork_rng():
            (seconds,) = self.in_turns([shape.call(self.device)])
        return seconds

    def in_turns(self, calls: Sequence[Callable[[], object]], seconds: float = SECONDS) -> list[float]:
        """Median seconds of each call, with other things in the cache before it."""
        others = torch.zeros(BETWEEN, device=self.device)
        timed = interleaved_seconds(
            calls,
            device=self.device,
            seconds=seconds,
            warmup=2,
            min_runs=RUNS,
            own_time=True,
            before=lambda: others.add_(1),
        )
        return [median(times) for times in timed]

    def network_shares(self, models: Sequence[nn.Module], example: Example, longer: float = 1.0) -> list[Share]:
        """Times of whole networks in eval mode on the example, as shares of the first one's; `longer` is surer."""
        with torch.no_grad():
            return shares_of_first(
                [partial(example.run, model) for model in models],
                device=example.device,
                seconds=longer * NETWORK_SECONDS,
                most=longer * MOST,
                error=ERROR,
                min_runs=NETWORK_RUNS,
            )

    def _read(self) -> dict[str, dict[str, float]]:
        """All machines of the file; nothing if it is not such a file."""
        try:
            data: Any = json.loads(self.path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                return {}
            return {str(m): {str(k): float(s) for k, s in times.items()} for m, times in data["machines"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}

    def _write(self) -> None:
        """Add what is known to the file; others may have written to it in the meantime."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_name(f".{self.path.name}.lock")):
                machines = self._read()
                machines[self.machine] = machines.get(self.machine, {}) | (self._known or {})
                write_json(self.path, {"format": FORMAT, "machines": machines})
        except (OSError, SparsityError):
            # a cache that cannot be written is only slower
            return


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time, where the system can do that."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bar(done: int, total: int) -> None:
    if sys.stderr.isatty():
        filled = 30 * done // total
        bar, end = "█" * filled + " " * (30 - filled), "\n" if done == total else ""
        print(f"\rtiming layers |{bar}| {done} of {total}", end=end, file=sys.stderr, flush=True)
