"""One run in a process of its own: what it is told stands in the first line of its input, whose end stops it.

The input ends when the process that started this one is gone, however it went. So no run is left behind that a new
start would meet.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from diffsparse.errors import SparsityError
from diffsparse.recipes.jobs import Job
from diffsparse.training import Recipe, StoppedError, train

FAILED = 2


def words_for(job: Job) -> str:
    """The line that tells a worker what to do."""
    return json.dumps({"recipe": job.recipe.as_dict(), "folder": str(job.folder)}) + "\n"


def main() -> None:
    """Train; the exit code is 0, 2 after a mistake, or that of the signal that came."""
    told = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_the_input, daemon=True).start()
    folder = Path(told["folder"])
    try:
        train(Recipe.from_dict(told["recipe"]), folder, resume=folder.exists())
    except StoppedError as stopped:
        sys.exit(128 + stopped.signal)
    except SparsityError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)


def _stop_with_the_input() -> None:
    # not sys.stdin, whose lock a waiting thread would hold at the end of the process
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
