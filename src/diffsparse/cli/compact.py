"""`diffsparse compact`: a gated file in, a compact file out."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from diffsparse.checkpoint import read_header, save
from diffsparse.cli.target import Target, check_writable
from diffsparse.compaction import compact
from diffsparse.errors import SparsityError


@dataclass(frozen=True, kw_only=True)
class Compact(Target):
    """Make a model smaller where its gates or weights are zero, verify it and save it."""

    output: Path = Path("compact.safetensors")
    """Where to save the compact model."""
    plan: Path | None = None
    """Where to also write the plan as JSON."""
    round_to: int = 1
    """Keep a few dead channels so that widths are multiples of this."""
    fold: bool = False
    """Fold batch norms into the layers in front of them."""
    strict: bool = False
    """Fail instead of keeping a layer that no rule describes."""
    tolerance: float | None = None
    """Largest relative difference to accept; by default what rounding does."""


def run_compact(config: Compact) -> None:
    """Load, compact, print the plan and the costs, save."""
    config.check()
    check_writable(config.output, "--output")
    if config.plan is not None:
        check_writable(config.plan, "--plan")
    if config.weights is not None and read_header(config.weights).kind == "compact":
        raise SparsityError(f"{config.weights} is already compact; give the gated file that it was made from")
    console = Console()
    model = config.loaded()
    with console.status("compacting"):
        small = compact(
            model,
            config.example(),
            tolerance=config.tolerance,
            round_to=config.round_to,
            strict=config.strict,
            fold=config.fold,
        )
    console.print(str(small), markup=False, highlight=False, soft_wrap=True)
    console.print(small.after.convention, style="dim")
    save(small, config.output)
    if config.plan is not None:
        config.plan.write_text(small.plan.to_json() + "\n")
    console.print(f"saved to {config.output}", markup=False)
