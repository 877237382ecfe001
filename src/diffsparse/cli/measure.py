"""`diffsparse measure`: what a model costs, alone or beside another."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from diffsparse.cli.target import Target, check_writable
from diffsparse.measuring import measure


@dataclass(frozen=True, kw_only=True)
class Measure(Target):
    """Count operations, parameters and memory, and time a model, alone or beside another."""

    against: Path | None = None
    """A second file of the same class, for example the compact one; both are timed in turns."""
    latency: bool = True
    """Whether to time at all."""
    seconds: float = 1.0
    """How long to time each model."""
    output: Path | None = None
    """Where to also write the figures as JSON."""


def run_measure(config: Measure) -> None:
    """Measure and print."""
    config.check()
    if config.output is not None:
        check_writable(config.output, "--output")
    console = Console()
    model = config.loaded()
    other = None if config.against is None else config.loaded(config.against)
    with console.status("measuring"):
        if other is None:
            text, figures = _both(measure(model, config.example(), latency=config.latency, seconds=config.seconds))
        else:
            text, figures = _both(
                measure(model, config.example(), other, latency=config.latency, seconds=config.seconds)
            )
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if config.output is not None:
        config.output.write_text(json.dumps(figures, indent=2) + "\n")


def _both(figures: object) -> tuple[str, object]:
    return str(figures), figures.as_dict()  # type: ignore[attr-defined]
