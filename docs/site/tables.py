"""Tables in README.md and docs/budget.md, and the picture of README, from result files.

    make tables

Each table stands between `<!-- table of NAME -->` and `<!-- end of table -->`. A test fails if one is out of date.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "experiments" / "results"
END = "<!-- end of table -->"
OURS = "budget"
"""Name of our method in the results."""
PEERS = {
    "Network Slimming, cut and retrained": "slimming",
    "Network Slimming, scales divided by cost": "slimming, ranked by scale / cost",
    "Torch-Pruning, magnitude within layers": "torch-pruning, magnitude, same share of each layer",
    "Torch-Pruning, scales of batch norms": "torch-pruning, bn scale",
    "uniformly narrow, from scratch": "uniform, from scratch",
}
GUIDE = {
    "plain": "plain, whole network",
    "budget": "budget",
    "budget, due=0.3": "budget, `due=0.3`",
    "budget, due=0.7": "budget, `due=0.7`",
    "budget, gates until the end": "budget, gates until the end (`due=1.0`)",
    "budget, start=0.5": "budget, gates start at 0.5",
    "budget, three shrinks": "budget, `shrinks=3`",
    "budget, no pressure": "budget, no pressure (`strength=0`)",
    "budget, unweighted": "budget, not weighted by cost (`weighted=False`)",
    "budget, l1 instead of thresholds": "budget, l1 instead of pressure on thresholds",
    "budget, rgf": "budget, rectified gradient flow",
    "budget, taught by the whole network": "budget, taught by the trained whole network",
    "budget, taught by its average": "budget, taught by its own moving average",
    "budget, 12 epochs": "budget, 12 epochs instead of 8",
    "slimming": "slimming",
    "slimming, ranked by scale / cost": "slimming, ranked by scale / cost",
    "slimming, restarted": "slimming, learning rate restarted",
    "gates, l1, fixed lambda, trim": "gates with l1 and a fixed lambda, trimmed",
    "torch-pruning, magnitude, same share of each layer": "Torch-Pruning, magnitude, the same share of each layer",
    "torch-pruning, magnitude, same share of each layer, weights halved": (
        "Torch-Pruning, magnitude, the same share of each layer, then weights halved as by a budget"
    ),
    "torch-pruning, magnitude": "Torch-Pruning, magnitude over all layers",
    "torch-pruning, bn scale": "Torch-Pruning, scales of batch norms",
    "torch-pruning, group norm": "Torch-Pruning, group norm",
    "the learned architecture, from scratch": "the learned architecture, from scratch",
    "proximal l1": "proximal l1",
    "uniform, from scratch": "uniformly narrow, from scratch",
}
"""Methods in the table of docs/budget.md, by their names in the results."""

CHAINS = {"vgg": "VGG-like", "mobilenet": "MobileNet-like"}
"""Networks of the table of layers in series, by their names in the results."""
FULL = {"full": "ResNet-20, 32 x 32"}
"""The network at full size."""
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}

_GUIDE_HEAD = ["MACs", "method", "accuracy", "parameters", "training", "latency", "runs"]

Rows = Sequence[Mapping[str, Any]]


def comparison(setting: str = "quick") -> Rows:
    """The rows of a comparison at equal cost."""
    rows: Rows = json.loads((RESULTS / f"budget-{setting}.json").read_text())["rows"]
    return rows


def find(rows: Rows, name: str, budget: float) -> Mapping[str, Any] | None:
    """The row of a method at this cost, if it has runs there."""
    return next((row for row in rows if row["method"] == name and row["budget"] == budget), None)


def costs(rows: Rows) -> list[float]:
    """The shares of MACs that were asked for, the largest first, without the whole network."""
    return sorted({row["budget"] for row in rows} - {1.0}, reverse=True)


def _accuracy(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.1f}"
    asked, found = (f"{row[key]:.0%}" for key in ("budget", "macs"))
    other = "" if found == asked else f" at {found}"
    return f"{100 * row['accuracy']:.1f}{spread} ({row['runs']}){other}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def results_table(rows: Rows) -> str:
    """One line per method, one column per cost: for README."""
    shares = costs(rows)
    head = [
        "accuracy in % (runs)",
        *(f"{share:.0%} of the MACs" for share in shares),
        "parameters",
        "time to train",
        "time to run",
    ]
    whole = find(rows, "plain", 1.0)
    assert whole is not None
    lines = []
    for title, name in ({"**diffsparse, a budget**": OURS} | PEERS).items():
        at30 = find(rows, name, 0.3)
        last = ["-", "-", "-"]
        if at30 is not None:
            last = [f"{at30['params']:.0%}", *(_share(at30[key], whole[key]) for key in ("seconds", "latency_ms"))]
        lines.append([title, *(_accuracy(find(rows, name, share)) for share in shares), *last])
    return f"{_table(head, lines)}\n\nThe whole network reaches {_accuracy(whole)}. `-`: not run."


def guide_table(rows: Rows) -> str:
    """One line per cost and method: for docs/budget.md."""
    lines = [_guide_cells(row) for row in rows if row["method"] in GUIDE]
    return _table(_GUIDE_HEAD, lines)


def networks_table(titles: Mapping[str, str]) -> str:
    """One line per network and method, for networks given by their names in the results: for docs/budget.md."""
    lines = [[title, *_guide_cells(row)] for name, title in titles.items() for row in comparison(name)]
    return _table(["network", *_GUIDE_HEAD], lines)


def _guide_cells(row: Mapping[str, Any]) -> list[str]:
    spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.2f}"
    accuracy = f"{100 * row['accuracy']:.2f}{spread}"
    asked, found = (f"{row[key]:.0%}" for key in ("budget", "macs"))
    return [
        asked if found == asked else f"{asked} (became {found})",
        GUIDE[row["method"]],
        accuracy,
        f"{row['params']:.0%}",
        "-" if row["seconds"] is None else f"{row['seconds']:.0f} s",
        "-" if row["latency_ms"] is None else f"{row['latency_ms']:.1f} ms",
        str(row["runs"]),
    ]


def _share(part: float | None, whole: float | None) -> str:
    return "-" if part is None or whole is None else f"{part / whole:.0%}"


def digits_table() -> str:
    """One line per optimiser and budget on digits: accuracy, and where the runs have landed."""
    rows = json.loads((RESULTS / "budget-digits.json").read_text())["rows"]
    lines = []
    for row in rows:
        landed = row["landed"]
        where = "" if landed is None else f"{min(landed):.3f} to {max(landed):.3f}"
        budget = "whole network" if landed is None else f"{row['budget']:g}"
        lines.append([OPTIMIZERS[row["optimizer"]], budget, f"{row['accuracy']:.1%}", f"{row['lowest']:.1%}", where])
    return _table(["optimiser", "MACs", "accuracy, mean", "lowest", "MACs over budget"], lines)


def replaced(text: str, name: str, table: str) -> str:
    """`text` with another table called `name`."""
    begin = f"<!-- table of {name} -->"
    ahead, found, rest = text.partition(begin)
    _, end, behind = rest.partition(END)
    if not found or not end:
        raise SystemExit(f"there is no table of {name}")
    return f"{ahead}{begin}\n{table}\n{END}{behind}"


def pages() -> dict[Path, str]:
    """Every page with tables, as it should be."""
    rows = comparison()
    made = {
        ROOT / "README.md": {"results": results_table(rows)},
        ROOT / "docs/budget.md": {
            "budgets": guide_table(rows),
            "full": networks_table(FULL),
            "chains": networks_table(CHAINS),
            "digits": digits_table(),
        },
    }
    return {path: _with_tables(path.read_text(), named) for path, named in made.items()}


def _with_tables(text: str, tables: Mapping[str, str]) -> str:
    for name, table in tables.items():
        text = replaced(text, name, table)
    return text


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content)
        print(f"wrote {page.relative_to(ROOT)}")
