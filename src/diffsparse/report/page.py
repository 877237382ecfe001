"""The page: template, style and script of this package, and the data of the runs, in one file."""

import os
from collections.abc import Sequence
from typing import Any

from diffsparse.errors import SparsityError
from diffsparse.files import write_text
from diffsparse.records import RunRecord
from diffsparse.report.summary import run_data
from diffsparse.version import __version__

SCRIPTS = ("numbers.js", "charts.js", "network.js", "tables.js", "main.js")


def write_report(path: str | os.PathLike[str], runs: Sequence[RunRecord], title: str | None = None) -> None:
    """Write the page of `runs` to `path`; the file appears when it is complete."""
    write_text(path, render_report(runs, title))


def render_report(runs: Sequence[RunRecord], title: str | None = None) -> str:
    """One or more finished runs as an HTML page that needs no other file and no network.

    Args:
        runs: what `read_run` gave, in the order of the page; the first is shown at first.
        title: by default the name of the run, or how many there are.
    """
    if not runs:
        raise SparsityError("give one or more finished runs")
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    # everything is escaped but the style and the scripts, which are ours
    environment = Environment(
        loader=PackageLoader("diffsparse.report", "assets"), autoescape=True, undefined=StrictUndefined
    )
    script = "\n".join(environment.loader.get_source(environment, name)[0] for name in SCRIPTS)  # type: ignore[union-attr]
    return environment.get_template("page.html").render(
        title=title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs"),
        subtitle=_subtitle(runs),
        version=__version__,
        style=Markup(environment.get_template("style.css").render()),
        script=Markup(f"(() => {{\n'use strict';\n{script}}})();"),
        data=[run_data(run, runs) for run in runs],
    )


def _subtitle(runs: Sequence[RunRecord]) -> str:
    def named(key: str) -> str:
        found = list(dict.fromkeys(str(run.result["config"].get(key, "-")) for run in runs))
        return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")

    methods: list[Any] = list(dict.fromkeys(run.method for run in runs))
    return f"{named('model')} on {named('data')}, by {', '.join(methods)}"
