"""One file from the network, checked before it gets its name."""

import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from diffsparse.errors import SparsityError
from diffsparse.files import replacing

CHUNK = 1 << 18


def download(url: str, path: Path, *, md5: str, timeout: float = 30.0) -> None:
    """Fetch `url` to `path`, with a progress bar on a terminal.

    The file has a temporary name until all of it is there and its checksum is right; after an error nothing is left.
    `timeout` is in seconds, for connecting and for each answer, not for the whole.
    """
    by_hand = f"try again, or fetch it by hand and put it at {path}"
    digest = hashlib.md5(usedforsecurity=False)
    # closed even if the disk fails, or the connection would stay open
    with replacing(path) as file, closing(_received(url, timeout, by_hand)) as chunks:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
        if digest.hexdigest() != md5:
            problem = f"its MD5 checksum must be {md5} but is {digest.hexdigest()}"
            raise SparsityError(f"cannot use what {url} sent: {problem}; {by_hand}")


def _received(url: str, timeout: float, by_hand: str) -> Generator[bytes, None, None]:
    """The file bit by bit; whatever goes wrong on the network is one sentence."""
    try:
        with urlopen(url, timeout=timeout) as response, _bar(url, response.length) as advance:
            expected, received = response.length, 0
            while chunk := response.read(CHUNK):
                received += len(chunk)
                advance(len(chunk))
                yield chunk
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            # it is an answer too, with a connection of its own
            error.close()
        # an error of the address wraps the cause that says something
        reason = getattr(error, "reason", None) or error
        raise SparsityError(f"cannot download {url}: {reason}; {by_hand}") from error
    if expected is not None and received != expected:
        problem = f"the connection ended after {received:,} of {expected:,} bytes"
        raise SparsityError(f"cannot download {url}: {problem}; {by_hand}")


@contextmanager
def _bar(url: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, elsewhere one line; the function tells it of more bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    console.print(f"downloading {url}", markup=False, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(url.rpartition("/")[2], total=total)
        yield lambda count: bar.advance(task, count)
