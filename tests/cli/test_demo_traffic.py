import contextlib
import csv
import dataclasses
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from diffsparse.cli.demo import METHODS, traffic_recipe
from diffsparse.cli.main import main
from diffsparse.traffic.data import TrafficDataSet, traffic_data
from diffsparse.traffic.reading import Speeds
from diffsparse.training import Sparsifying
from tests.training.examples import RUN_MODULE

NODES = 6
RUNS = ("baseline-I", "baseline-II", "ours")


def ring_roads() -> TrafficDataSet:
    """Six roads in a ring, each as fast as the one before it was a step ago, with some noise."""
    generator = torch.Generator().manual_seed(0)
    values = [40 + 20 * torch.rand(NODES, generator=generator)]
    while len(values) < 200:
        values.append(0.8 * values[-1].roll(1) + 10 + 2 * torch.randn(NODES, generator=generator))
    ring = torch.eye(NODES).roll(1, 0).bool()
    names = tuple("abcdef")
    return traffic_data("ring", Speeds(values=torch.stack(values).double(), names=names), ring | ring.mT)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A demo that is over."""

    folder: Path
    printed: str
    rows: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The real thing, on a smaller map."""
    folder, printed = tmp_path_factory.mktemp("demo") / "new", io.StringIO()
    data = ring_roads()
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(RUN_MODULE, "open_data", lambda *_, **__: data)
        # to draw twelve pictures takes longer than all else
        patch.setattr("diffsparse.plot.picture.save_picture", lambda path, _figure: path.touch())
        main(["demo", "traffic", "--epochs", "2", "--output", str(folder)])
    rows = json.loads((folder / "demo.json").read_text())
    return Finished(folder=folder, printed=printed.getvalue(), rows=rows)


def test_a_row_for_each_network(finished: Finished) -> None:
    assert tuple(finished.rows) == RUNS
    given, every, _ = finished.rows.values()
    # twelve links and the diagonal
    assert given["nonzeros"] == 18
    assert given["lr1"] == pytest.approx(1)
    assert every["nonzeros"] == 36
    assert all(row["entries"] == 36 and row["links"] == 12 for row in finished.rows.values())


def test_prints_the_epochs_of_all_networks_and_the_table(finished: Finished) -> None:
    lines = finished.printed.splitlines()
    epochs = [line.split(":")[0] for line in lines if " epoch " in line and line.startswith(RUNS)]
    assert epochs == [f"{name} epoch {epoch}/2" for name in RUNS for epoch in (1, 2)]
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    expected = [
        [
            name.replace("-", " "),
            f"{row['nonzeros']} ({row['nonzeros'] / 36:.1%})",
            f"{row['mape']:.2f}%",
            f"{row['mae']:.3f}",
            f"{row['lr1']:.1%}",
            f"{row['lr2']:.1%}",
        ]
        for name, row in finished.rows.items()
    ]
    assert shown == expected
    assert "non-zeros of 36" in finished.printed


def test_the_last_sentence_counts_links_that_were_found(finished: Finished) -> None:
    with (finished.folder / "ours" / "graph.csv").open() as file:
        kept = [(ord(row["source"]) - ord(row["target"])) % NODES for row in csv.DictReader(file)]
    found = sum(apart in (1, NODES - 1) for apart in kept)
    sentence = (
        f"ours found {found} of the map's 12 links, each direction counted, "
        f"among the {len(kept)} of 36 entries that it kept"
    )
    assert sentence in finished.printed.splitlines()


def test_runs_graphs_and_pictures_are_kept(finished: Finished) -> None:
    wanted = {"result.json", "graph.csv", "graph.svg", "graph.png", "roads.svg", "roads.png", "trained.safetensors"}
    for name in RUNS:
        assert {path.name for path in (finished.folder / name).iterdir()} >= wanted
    assert f"the runs and demo.json are in {finished.folder}" in finished.printed
    main(["report", *(str(finished.folder / name) for name in RUNS)])


def test_nothing_is_kept_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # pictures would take longer than an epoch of the made-up roads
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    main(["demo", "traffic", "--epochs", "1"])
    printed = capsys.readouterr().out
    assert "ours epoch 1/1" in printed
    assert re.search(r"^ours found \d+ of the map's \d+ links", printed, re.MULTILINE)
    assert "demo.json" not in printed
    assert list(tmp_path.iterdir()) == []


def test_the_runs_differ_in_their_method_only() -> None:
    recipes = [traffic_recipe(method, 7, 0.25, 3) for method in METHODS.values()]
    assert [recipe.sparsifying.method for recipe in recipes] == ["given-map", "plain", "ds"]
    assert (recipes[2].sparsifying.norm, recipes[2].sparsifying.strength) == ("lp", 0.25)
    alike = {dataclasses.replace(recipe, sparsifying=Sparsifying()) for recipe in recipes}
    assert [(recipe.data, recipe.epochs, recipe.seed) for recipe in alike] == [("synthetic-roads", 7, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
        (["--strength", "-1"], "strength must be a finite number of at least 0, got -1.0"),
        (["--strength", "nan"], "got nan"),
        (["--seed", "-1"], "seed must be a whole number of at least 0"),
        (["--output", "tests"], "--output must be a new or empty folder, got tests"),
        (["--output", "README.md"], "--output must be a new or empty folder, got README.md"),
        (["--output", "README.md/inside"], "cannot make the folder 'README.md/inside/baseline-I': Not a directory"),
    ],
)
def test_bad_input_exits_with_two_and_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "traffic", "--epochs", "1", *arguments])
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["demo", "traffic", "--model", "resnet50"], ["demo", "--epochs", "1", "traffic"], ["demo", "digits"]]
)
def test_options_of_the_other_demo_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "Unrecognized options" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"), [(["demo"], "residual net on digits"), (["demo", "traffic"], "sparse road map")]
)
def test_each_demo_has_its_help(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    assert named in capsys.readouterr().out
