"""Whole runs on text: from files to a compact network."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import diffsparse as ds
from diffsparse.cli.main import main
from diffsparse.cli.train import epoch_parts
from diffsparse.data import names, open_data
from diffsparse.models import create
from diffsparse.models.transformer import LanguageModel
from diffsparse.text import PlainTextData, SentenceData
from diffsparse.text.feature import TEXT_NAMES
from diffsparse.training import Optimisation, Recipe, Sparsifying, train
from tests.text.files import write_both, write_plain
from tests.training.examples import Signals, outcome, run_stopped

SMALL = {"layers": 2, "heads": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("text"))


def recipe(root: Path, model: str = "gpt-mini", **changes: Any) -> Recipe:
    """Two epochs, on text in pieces of 128 bytes seven steps each."""
    usual = {
        "model": model,
        "arguments": json.dumps(SMALL),
        "data": "text",
        "data_root": root,
        "epochs": 2,
        "batch_size": 8,
        "optimisation": Optimisation(optimizer="adamw", learning_rate=3e-3, gate_rate=5.0, warmup_epochs=0.2),
        "sparsifying": Sparsifying(macs=0.5),
    }
    return Recipe(**usual | changes)


def test_the_folder_and_the_network_say_what_is_learned(root: Path, tmp_path: Path) -> None:
    assert isinstance(open_data("text", root=root, network="gpt-mini-0.5"), PlainTextData)
    assert isinstance(open_data("text", root=root, network="bert-mini"), SentenceData)
    assert isinstance(open_data("plain-text", root=root), PlainTextData)
    assert isinstance(open_data("labelled-text", root=root), SentenceData)
    write_plain(tmp_path / "only.txt")
    # what is there decides; the task then says that the network does not suit
    assert isinstance(open_data("text", root=tmp_path, network="bert-mini"), PlainTextData)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"network": "mine:Net"},
            r"holds sentences with labels \(--data labelled-text\) and plain text \(--data plain",
        ),
        ({"download": True}, "text cannot be downloaded"),
        ({"image_size": 32}, "text has no images, got image_size 32"),
        ({"root": Path("/nowhere")}, "the data root /nowhere does not exist"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        open_data("text", **{"root": root} | options)


def test_the_names_are_known() -> None:
    assert {*TEXT_NAMES} == {"text", "labelled-text", "plain-text"} <= {*names()}


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ds.SparsityError, match=r"holds no text: looked for tab-separated sentences and labels"):
        open_data("text", root=tmp_path)


def test_the_networks_are_known_and_say_what_they_need() -> None:
    with pytest.raises(ds.SparsityError, match=r"gpt-mini-0\.5 learns from text: train it with --data text"):
        create("gpt-mini-0.5")


def test_a_language_model_becomes_small(root: Path, tmp_path: Path) -> None:
    result = train(recipe(root), tmp_path / "run")
    cost, figures = result["cost"], result["figures"]["compact"]
    assert 0.45 < cost["compact"]["macs"] / cost["plain"]["macs"] <= 0.5
    assert 0 < figures["nats_per_token"] == figures["loss"] < 5.5
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["validation_nats_per_token"] < log[0]["validation_nats_per_token"]
    assert any("nats per token" in part for part in epoch_parts(log[-1]))
    net = ds.load(tmp_path / "run" / "compact.safetensors", LanguageModel(length=128, **SMALL)).eval()
    assert ds.measure(net, torch.ones(1, 128, dtype=torch.int64), latency=False).macs == cost["compact"]["macs"]
    text = open_data("plain-text", root=root)
    inputs, targets = next(text.test.in_order(1000))
    loss = torch.nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(figures["loss"], rel=1e-4)


def test_a_stopped_run_goes_on_to_the_last_bit(root: Path, tmp_path: Path) -> None:
    # small after five of fourteen steps: one stop before, one after
    its = recipe(root, sparsifying=Sparsifying(macs=0.5, due=0.36))
    train(its, tmp_path / "whole")
    run_stopped(its, tmp_path / "stopped", Signals(3), Signals(9))
    expected, found = outcome(tmp_path / "whole"), outcome(tmp_path / "stopped")
    for key, value in expected.items():
        assert found[key] == value, key


def test_sentences_are_classified_by_a_small_network(root: Path, tmp_path: Path) -> None:
    # gates start alike: had survivors become smaller when the others died, nothing would be learned behind them
    rates = Optimisation(optimizer="adamw", learning_rate=1e-3, warmup_epochs=1)
    its = recipe(root, "bert-mini", epochs=12, optimisation=rates)
    result = train(its, tmp_path / "run")
    assert result["cost"]["compact"]["macs"] <= 0.5 * result["cost"]["plain"]["macs"]
    assert result["figures"]["compact"]["accuracy"] > 0.9


def test_the_uniform_peer_is_a_narrower_network(root: Path, tmp_path: Path) -> None:
    its = recipe(root, epochs=1, sparsifying=Sparsifying(method="scratch", macs=0.5))
    result = train(its, tmp_path / "run")
    assert result["network"].startswith("gpt-mini-0.")
    assert result["cost"]["compact"]["macs"] <= 0.5 * result["cost"]["plain"]["macs"]


def test_the_command_prints_the_loss(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"train --model gpt-mini --data text --data-root {root} --macs 0.5 --epochs 1 --batch-size 16"
    main([*command.split(), "--arguments", json.dumps(SMALL), "--output", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert "nats_per_token" in printed
    main(["data", "plain-text", "--data-root", str(root)])
    assert "bytes each" in capsys.readouterr().out
