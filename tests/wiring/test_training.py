"""Wired networks in the training loop: every rule on digits, what results say, resuming, wrong options."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import diffsparse as ds
from diffsparse.cli.tables import results_table
from diffsparse.cli.train import epoch_parts
from diffsparse.data import open_data
from diffsparse.methods import Method, choose_method
from diffsparse.models import create
from diffsparse.training import Distillation, Hardware, Recipe, Sparsifying, Watcher, train
from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.evaluate import evaluate
from diffsparse.training.folder import Log
from diffsparse.wiring import WiredStage
from diffsparse.wiring.feature import Wired, WiredGates, WiredLargest, WiredProximal, WiredRandom
from diffsparse.wiring.graph import learned_wiring, wiring_figures
from tests.training.examples import ALONE, NET, STEPS, Net, Signals, outcome, recipe, run_stopped

MODEL = "wired-mobilenet-0.25-small"
# stages of 8, 16, 32 and 64 channels: 8 x 16, 32 (16 + 48) and 64 (32 + 96) edges
USABLE = (128, 2048, 8192)
# maps of 8, 4 and 2 pixels; the stem and the filters of 8, 48 and 96 nodes; the classifier
COMPLETE = 9 * 8 * 64 + (9 * 8 + 128) * 64 + (9 * 48 + 2048) * 16 + (9 * 96 + 8192) * 4 + 640
COUNTED = ("dnw", "dnw-no-update", "random")
STEERED = {"ds": {"rgf": 0.1}, "proximal-l1": {}, "proximal-l12": {}}


def on_digits(**settings: Any) -> Recipe:
    return Recipe(
        model=MODEL, epochs=1, batch_size=64, sparsifying=Sparsifying(**settings), hardware=Hardware(threads=1)
    )


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture takes longer than an epoch of digits."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize("method", COUNTED)
def test_methods_that_count_keep_just_so_many_edges(method: str, tmp_path: Path) -> None:
    result = train(on_digits(method=method, target=0.8), tmp_path / "run")
    # a fifth of each stage, to the nearest
    kept = 26 + 410 + 1638
    zeros = {"zero": sum(USABLE) - kept, "total": sum(USABLE), "fraction": pytest.approx(0.8, abs=1e-3)}
    assert result["zeros"] == zeros | {"kinds": {"edges": zeros}}
    wiring = result["wiring"]
    assert (wiring["edges"], wiring["usable_edges"]) == (kept, sum(USABLE))
    assert wiring["one_hop"]["edges"] == kept
    (record,) = Log(path=tmp_path / "run" / "log.jsonl").records()
    assert record["edges"] == kept
    assert record["macs"] == wiring["recursive"]["mult_adds"]
    assert f"{kept:,} edges" in epoch_parts(record)


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(("method", "options"), STEERED.items(), ids=STEERED.keys())
def test_methods_with_a_strength_drop_edges(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    result = train(on_digits(method=method, strength=0.02, **options), tmp_path / "run")
    wiring = result["wiring"]
    assert 0.02 < result["zeros"]["fraction"] < 1
    assert wiring["edges"] == sum(USABLE) - result["zeros"]["zero"]
    assert wiring["recursive"]["mult_adds"] <= wiring["one_hop"]["mult_adds"] < wiring["complete"]["mult_adds"]
    small = ds.load(tmp_path / "run" / "compact.safetensors", create(MODEL, num_classes=10, in_channels=1))
    figures = evaluate(small, open_data("digits").test, ClassificationObjective(), 64, ALONE)
    assert figures == pytest.approx(result["figures"]["compact"])


@pytest.mark.usefixtures("no_picture")
def test_plain_keeps_every_edge(tmp_path: Path) -> None:
    result = train(on_digits(method="plain"), tmp_path / "run")
    wiring = result["wiring"]
    assert result["zeros"]["zero"] == 0
    assert wiring["one_hop"] == wiring["recursive"] == wiring["complete"]
    assert wiring["complete"]["mult_adds"] == COMPLETE
    # nine weights for each of 8 channels of the stem and 152 nodes, edges, classifier with its bias
    assert wiring["complete"]["params"] == 9 * 8 + 9 * 152 + sum(USABLE) + 650
    shown = [cell for column in results_table({"x": result}).columns for cell in column.cells]
    assert {"0.0% of edges", "94k (100.0%)"} <= set(shown)


@pytest.mark.usefixtures("data", "no_picture")
@pytest.mark.parametrize("method", ["dnw", "random"])
def test_a_resumed_run_is_the_same_to_the_last_bit(method: str, tmp_path: Path) -> None:
    its_recipe = recipe(model=MODEL, sparsifying=Sparsifying(method=method, target=0.9))
    train(its_recipe, tmp_path / "whole")
    run_stopped(its_recipe, tmp_path / "stopped", Signals(STEPS + 2), Signals(2 * STEPS))
    expected, found = outcome(tmp_path / "whole"), outcome(tmp_path / "stopped")
    for key, value in expected.items():
        assert found[key] == value, key


@pytest.mark.usefixtures("data", "no_picture")
def test_a_teacher_has_all_its_edges(tmp_path: Path) -> None:
    its_recipe = recipe(
        model=MODEL,
        epochs=1,
        distillation=Distillation(teacher="train"),
        sparsifying=Sparsifying(method="random", target=0.9),
    )
    train(its_recipe, tmp_path / "run")
    records = Log(path=tmp_path / "run" / "log.jsonl").records()
    assert [(record["phase"], record["edges"]) for record in records] == [
        ("teacher", sum(USABLE)),
        ("train", 13 + 205 + 819),
    ]


def random_run(folder: Path) -> list[str]:
    """An epoch of a random graph; returns what was said."""
    said: list[str] = []
    watcher = Watcher()
    watcher.say = said.append  # type: ignore[method-assign]
    its_recipe = recipe(model=MODEL, epochs=1, sparsifying=Sparsifying(method="random", target=0.9))
    train(its_recipe, folder, watcher=watcher)
    assert (folder / "result.json").exists()
    return said


@pytest.mark.usefixtures("data")
def test_a_run_leaves_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert random_run(tmp_path / "run") == []
    assert (tmp_path / "run" / "wiring.svg").read_text().count("<svg") == 1
    assert (tmp_path / "run" / "wiring.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("data", "no_picture")
def test_without_matplotlib_there_is_no_picture_and_no_error(tmp_path: Path) -> None:
    (line,) = random_run(tmp_path / "run")
    assert line == "no picture of the wiring: pictures need matplotlib; install it with: pip install matplotlib"
    assert not (tmp_path / "run" / "wiring.svg").exists()


def test_a_compact_file_fits_a_fresh_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    method, example = WiredRandom(target=0.97), torch.zeros(1, 3, 32, 32)
    model = method.prepare(create("wired-mobilenet-0.25")).eval()
    ds.save(method.compacted(model, model, example), tmp_path / "compact.safetensors")
    small = ds.load(tmp_path / "compact.safetensors", create("wired-mobilenet-0.25")).eval()
    assert sum(p.numel() for p in small.parameters()) < 0.9 * sum(p.numel() for p in model.parameters())
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(small(images), model(images), rtol=1e-4, atol=1e-5)


def test_figures_count_the_live_graph() -> None:
    net = WiredRandom(target=0.9).prepare(create(MODEL, num_classes=10, in_channels=1))
    graph = learned_wiring(net)
    assert graph is not None
    figures = wiring_figures(graph, 8)
    assert figures["complete"]["mult_adds"] == COMPLETE
    assert Wired().live_macs(net, torch.zeros(1, 1, 8, 8)) == figures["recursive"]["mult_adds"]
    assert figures["recursive"]["edges"] <= figures["one_hop"]["edges"] == figures["edges"] == 13 + 205 + 819


def test_only_chains_of_stages_have_a_graph() -> None:
    stage = WiredStage(1, 4)
    assert learned_wiring(stage) is None
    assert learned_wiring(create("preresnet20-0.25")) is None
    # the macs of a stage by itself are those of its compact form: a filter and four edges
    assert Wired().live_macs(stage, torch.zeros(1, 1, 8, 8)) == (9 + 4) * 64


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"strength": 0.2, "rgf": 0.1}, WiredGates(strength=0.2, rgf=0.1)),
        ({"strength": 1e-3, "norm": "l12"}, WiredGates(strength=1e-3, norm=ds.ExclusiveL12())),
        ({"method": "proximal-l1", "strength": 0.2}, WiredProximal(strength=0.2)),
        ({"method": "proximal-l12", "strength": 1e-3}, WiredProximal(strength=1e-3, norm=ds.ExclusiveL12())),
        ({"method": "dnw", "target": 0.5}, WiredLargest(target=0.5)),
        ({"method": "dnw-no-update", "target": 0.5, "strength": 0.0}, WiredLargest(target=0.5, update=False)),
        ({"method": "random", "target": 0.5}, WiredRandom(target=0.5)),
    ],
)
def test_each_method_gets_its_options(settings: dict[str, Any], expected: Method) -> None:
    chosen = choose_method(Sparsifying(**settings), WiredStage(1, 1))
    assert repr(chosen) == repr(expected)


def test_plain_is_the_base_of_all() -> None:
    assert type(choose_method(Sparsifying(method="plain"), WiredStage(1, 1))) is Wired


@pytest.mark.parametrize(
    ("wired", "settings", "message"),
    [
        (
            True,
            {"method": "slimming", "target": 0.5},
            "method slimming is for ordinary networks; WiredStage is wired: choose",
        ),
        (True, {"method": "proximal-l21", "strength": 0.1}, "method proximal-l21 is for ordinary networks"),
        (True, {"method": "scratch", "like": Path("x")}, "method scratch is for ordinary networks"),
        (True, {"macs": 0.5}, "macs=0.5 has no meaning for method ds"),
        (True, {"start": 0.3}, "start=0.3 has no meaning for method ds"),
        (True, {"method": "dnw"}, "dnw needs a target, the share of edges that are zero"),
        (
            True,
            {"method": "random", "macs": 0.5, "target": 0.5},
            "macs=0.5 has no meaning for",
        ),
        (True, {"method": "dnw", "target": 0.5, "rgf": 0.1}, "rgf=0.1 has no meaning for method dnw"),
        (True, {"method": "dnw", "target": 0.5, "ramp_epochs": 1.0}, "ramp_epochs=1.0 has no meaning for method dnw"),
        (
            False,
            {"method": "dnw", "target": 0.5},
            "method dnw is for wired networks; Net is ordinary: choose",
        ),
        (False, {"method": "random", "target": 0.5}, "method random is for wired networks"),
    ],
)
def test_methods_and_options_that_do_not_fit(wired: bool, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ds.SparsityError, match=re.escape(message)):
        choose_method(Sparsifying(**settings), WiredStage(1, 1) if wired else Net())


@pytest.mark.usefixtures("data")
def test_nothing_is_written_when_method_and_network_do_not_fit(tmp_path: Path) -> None:
    for model, method in ((NET, "dnw"), (MODEL, "slimming")):
        with pytest.raises(ds.SparsityError, match=r"networks; .* choose one of"):
            train(recipe(model=model, sparsifying=Sparsifying(method=method, target=0.5)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
