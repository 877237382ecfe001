"""A finished run as the data of the page."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diffsparse.plot.curves import NAMES, epochs_in_a_row, moments
from diffsparse.records import RunRecord
from diffsparse.report.cells import result_cells
from diffsparse.training import Recipe
from diffsparse.training.report import costs_in

MOST_POINTS = 240
"""Epochs of a curve; of more, some are left out."""
DIGITS = 5
"""Of numbers in curves, which are to be seen."""
NOISY = 0.5
"""Distance between the quartiles of times, as a share of the median, above which they tell little."""
CURVES = ("train_loss", "validation_loss", "test_loss", *(f"{name}_share" for name in NAMES))
LABELS = {"mape": "MAPE, %", "nats_per_token": "nats per token"}


def run_data(run: RunRecord, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """All that the page shows of `run`, one of the `runs` of the page; a plain one among them is what it was before."""
    result, config = run.result, run.result["config"]
    cells = result_cells(result)
    whole = costs_in(result)["plain"]
    asked = {key: value if value <= 1 else value / whole[key] for key, value in (result.get("asked") or {}).items()}
    return {
        "name": run.name,
        "method": run.method,
        "model": config.get("model", "-"),
        "headline": _headline(run, runs),
        "cards": _cards(result, cells),
        "remark": _remark(result),
        "asked": {key: round(value, DIGITS) for key, value in asked.items()},
        "curve": _curve(run),
        "layers": [
            [layer[key] for key in ("name", "kind", "inputs", "outputs", "params", "macs")]
            for layer in result.get("layers", [])
        ],
        "seconds": sum(result["training_seconds"].values()),
        "config": [list(row) for row in _settings(config)],
        "figures": [[key, value] for key, value in cells.items()],
        "versions": [[key, value] for key, value in result.get("environment", {}).items() if value is not None],
        "commands": _commands(run),
    }


def _headline(run: RunRecord, runs: Sequence[RunRecord]) -> dict[str, Any]:
    name, value = run.headline
    before, note = None, "there is no plain run here to compare with"
    twins = [other for other in runs if other.method == "plain" and other is not run and _task(other) == _task(run)]
    if run.method == "plain":
        note = "a plain run"
    elif twins:
        before, note = sum(twin.headline[1] for twin in twins) / len(twins), "as a plain run"
        if len(twins) > 1:
            note = f"mean of {len(twins)} plain runs"
    elif run.log and run.log[-1]["phase"] == "retrain" and name in run.result["figures"]["trained"]:
        before, note = run.result["figures"]["trained"][name], "before it was cut"
    kind = "percent" if name == "accuracy" else "number"
    label = LABELS.get(name, name.replace("_", " "))
    return {"name": name, "label": label, "format": kind, "value": value, "before": before, "note": note}


def _task(run: RunRecord) -> tuple[Any, ...]:
    return *(run.result["config"].get(key) for key in ("model", "arguments", "data", "image_size")), run.headline[0]


def _cards(result: Mapping[str, Any], cells: Mapping[str, str]) -> list[dict[str, Any]]:
    costs, latency = costs_in(result), result.get("latency")
    before, after = costs["plain"], costs["compact"]
    cards = [
        ("macs", "MACs", "count", before["macs"], after["macs"]),
        ("params", "parameters", "count", before["params"], after["params"]),
        ("seconds", "time of one input", "seconds", *_seconds(latency)),
        ("bytes", "file", "bytes", before.get("file_bytes"), after.get("file_bytes")),
    ]
    keys = ("key", "label", "format", "before", "after")
    unsure = {"seconds"} if _is_noisy(latency) else set()
    # a report may say that MACs mean nothing for its networks
    shown = [card for card in cards if card[0] != "macs" or "MACs" in cells]
    return [dict(zip(keys, card, strict=True)) | {"cost": True, "unsure": card[0] in unsure} for card in shown]


def _seconds(latency: Mapping[str, Any] | None) -> tuple[float | None, float | None]:
    return (latency["plain"]["median"], latency["compact"]["median"]) if latency else (None, None)


def _is_noisy(latency: Mapping[str, Any] | None) -> bool:
    times = (latency["plain"], latency["compact"]) if latency else ()
    return any(time["upper_quartile"] - time["lower_quartile"] > NOISY * time["median"] for time in times)


def _remark(result: Mapping[str, Any]) -> str:
    """What the numbers of the cards are about, in a sentence or two."""
    words = ["MACs are those of one input."]
    if latency := result.get("latency"):
        where = f"{latency['device']}, {latency['threads']} thread{'s' if latency['threads'] != 1 else ''}"
        words.append(f"Time is the median of {latency['plain']['runs']} calls, in turns, on {where}.")
        if _is_noisy(latency):
            words.append("The machine was busy: times vary too much to be compared.")
    if (difference := result.get("max_difference")) is not None:
        changed = f"changed outputs by at most {difference:.1g}, relative to the largest"
        words.append(f"Compaction {changed if difference else 'did not change outputs'}.")
    return " ".join(words)


def _curve(run: RunRecord) -> dict[str, Any]:
    plain, epochs = run.result["cost"]["plain"], epochs_in_a_row(run)
    step = -(-len(epochs) // MOST_POINTS) or 1
    # the last epoch always
    chosen = sorted({*range(0, len(epochs), step), *range(len(epochs))[-1:]})
    records = [_with_share(run.log[at], plain) for at in chosen]
    series = {key: [_rounded(record.get(key)) for record in records] for key in CURVES}
    return {
        "epochs": [epochs[at] for at in chosen],
        "series": {key: values for key, values in series.items() if any(value is not None for value in values)},
        "moments": [[round(at, 2), words] for at, words in moments(run)],
    }


def _with_share(record: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    share = None if record.get("macs") is None or not plain.get("macs") else record["macs"] / plain["macs"]
    return {"macs_share": share, **record}


def _rounded(number: float | None) -> float | None:
    # neither NaN nor infinity can be drawn
    return None if number is None or not abs(number) < float("inf") else float(f"{number:.{DIGITS}g}")


def _settings(config: Mapping[str, Any]) -> Iterable[tuple[str, str, bool]]:
    """Every setting, and whether it is another than the default."""
    usual = dict(_flat(Recipe().as_dict()))
    for key, value in _flat(config):
        words = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield key, words, usual.get(key) != value


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _commands(run: RunRecord) -> list[str]:
    own = str(run.result.get("command", ""))
    # results of earlier versions name the command without its flags
    if own.startswith("diffsparse train "):
        return [own]
    config, output = shlex.quote(f"{run.name}/config.toml"), shlex.quote(f"{run.name}-again")
    return [f"diffsparse train --config {config} --output {output}"]
