import io
import json
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console

from diffsparse.cli.main import main
from diffsparse.cli.train import Train, TrainingBar, epoch_parts, train_defaults
from diffsparse.training import Recipe, StoppedError, read_recipe
from tests.training.conftest import data as data
from tests.training.examples import NET, STEPS, Signals, outcome

SMALL = ["train", "--model", NET, "--epochs", "2", "--batch-size", "16"]


@pytest.mark.usefixtures("data")
class TestRuns:
    """With the small data in the place of digits."""

    def test_a_line_for_each_epoch_and_a_table(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        main([*SMALL, "--output", str(tmp_path / "run")])
        lines = capsys.readouterr().out.splitlines()
        records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
        told = [line for line in lines if line.startswith("train epoch")]
        for line, record in zip(told, records, strict=True):
            epoch = record["epoch"]
            assert line.startswith(f"train epoch {epoch}/2: loss {record['train_loss']:.3f}, test ")
            assert line.endswith(" s left")
        assert told[-1].endswith(", 0 s left")
        assert [line.split("│")[1:3] for line in lines if line.startswith("│ run")] != []
        assert lines[-1] == f"files in {tmp_path / 'run'}"

    def test_the_folder_has_a_name_of_its_own_by_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        main([*SMALL, "--seed", "3", "--method", "plain", "--epochs", "1"])
        assert "files in runs/tests.training.examples.Net-digits-plain-3" in capsys.readouterr().out
        assert (tmp_path / "runs/tests.training.examples.Net-digits-plain-3/result.json").exists()

    def test_the_written_configuration_repeats_the_run(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        main([*SMALL, "--strength", "0.05", "--optimizer", "adam", "--milestones", "0.5", "--output", str(first)])
        main(["train", "--config", str(first / "config.toml"), "--output", str(second)])
        assert (second / "config.toml").read_text() == (first / "config.toml").read_text()
        assert outcome(second) == outcome(first)

    def test_resume_takes_up_the_configuration_of_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = str(tmp_path / "run")
        with monkeypatch.context() as patch:
            stop = Signals(STEPS + 2)
            stop.phase_began("train", epochs=2, steps=STEPS, done=0, unit="images")
            patch.setattr("diffsparse.cli.train.TrainingBar.step_done", lambda _bar, *_: stop.step_done())
            with pytest.raises(SystemExit) as stopped:
                main([*SMALL, "--output", folder])
        assert stopped.value.code == 143
        words = f"diffsparse: stopped by SIGTERM; the same command with --resume goes on from '{folder}'\n"
        assert capsys.readouterr().err == words
        with pytest.raises(SystemExit) as stopped:
            main(["train", "--resume", "--output", folder, "--epochs", "3"])
        assert stopped.value.code == 2
        assert "was begun with epochs = 2, not 3" in capsys.readouterr().err
        main(["train", "--resume", "--output", folder])
        printed = capsys.readouterr().out
        assert printed.splitlines()[0].startswith(f"going on from '{folder}/checkpoints/1-train-00001-0000002")
        assert printed.splitlines()[1].startswith("train epoch 2/2")
        main([*SMALL, "--output", str(tmp_path / "whole")])
        assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--model", "preresnet9"], "a ResNet of BasicBlocks has depth 6n + 2, n at least 1; got 9"),
            (["--model", "vgg16"], "unknown network 'vgg16'"),
            (["--model", "no.such:Net"], "cannot find no.such:Net"),
            (["--arguments", "{"], "arguments must be a JSON object"),
            (["--epochs", "0"], "epochs must be a whole number of at least 1, got 0"),
            (["--batch-size", "1000"], "a batch of 1000 is more than the 96 inputs of small to train on"),
            (["--device", "cuda:9"], "device 'cuda:9' cannot be used"),
            (["--macs", "0"], "macs must be a finite number above 0, got 0.0"),
            (["--macs", "1.5"], "macs must be a share of the whole network, up to 1, or a whole number, got 1.5"),
            (["--params", "1000000"], "params=1e+06 is more than the whole network costs"),
            (["--macs", "0.001"], "a budget of macs=0.001 cannot be reached"),
            (["--latency", "1.5"], "latency must be a share of the whole network's, above 0 and up to 1, got 1.5"),
            (["--latency", "0.5", "--method", "slimming"], "latency=0.5 has no meaning for method slimming"),
            (["--latency", "0.5", "--target", "0.4"], "latency=0.5 and target=0.4 both say how small to become"),
            (["--macs", "0.5", "--target", "0.4"], "macs=0.5 and target=0.4 both say how small to become"),
            (["--macs", "0.5", "--strength", "auto"], "macs=0.5 and strength=auto both say how small to become"),
            (["--method", "scratch"], "Net has no width multiplier, so there is no narrower network like it"),
            (["--teacher", "none"], "there is no file 'none' with the weights of the teacher"),
            (["--config", "none.toml"], "cannot read the configuration 'none.toml': No such file"),
            (["--config", "wrong.toml"], "'wrong.toml' has unknown key 'epoch'"),
            (["--output", "wrong.toml"], "cannot make the folder 'wrong.toml': File exists"),
            (["--output", "full"], "'full' is not empty and holds no run"),
        ],
    )
    def test_bad_input_exits_with_two_and_one_sentence(
        self,
        arguments: list[str],
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "wrong.toml").write_text("epoch = 3")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").touch()
        with pytest.raises(SystemExit) as stopped:
            main([*SMALL, *arguments])
        assert stopped.value.code == 2
        errors = capsys.readouterr().err
        assert message in errors
        assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "mnist"], "data set must be one of digits"),
        (["--data", "cifar10", "--data-root", "/nowhere"], "data root /nowhere does not exist"),
    ],
)
def test_wrong_data_exits_with_two(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*SMALL, *arguments, "--output", str(tmp_path / "run")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word", ["--optimizer=lion", "--no-such-flag", "--epochs=many"])
def test_words_that_no_flag_knows_exit_with_two(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", word])
    assert stopped.value.code == 2
    assert word.strip("-").partition("=")[0] in capsys.readouterr().err


def test_flags_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Train] = []
    monkeypatch.setattr(Train, "run", lambda command: asked.append(command))
    path = tmp_path / "settings.toml"
    path.write_text("epochs = 7\nbatch_size = 32\n[sparsifying]\nstrength = 0.5\nrgf = 0.1\n")
    main(["train", "--config", str(path), "--epochs", "9", "--strength", "0.25", "--rgf", "None"])
    recipe = asked[0].recipe
    assert (recipe.epochs, recipe.batch_size, recipe.sparsifying.strength, recipe.sparsifying.rgf) == (
        9,
        32,
        0.25,
        None,
    )
    main(["train", f"--config={path}"])
    assert asked[1].recipe == read_recipe(path)
    main(["train"])
    assert asked[2].recipe == Recipe()


def test_defaults_of_a_run_to_resume(tmp_path: Path) -> None:
    assert train_defaults(["--output", str(tmp_path), "--resume"]) == Train()
    (tmp_path / "config.toml").write_text("epochs = 7\n")
    assert train_defaults(["--output", str(tmp_path)]) == Train()
    assert train_defaults([f"--output={tmp_path}", "--resume"]).recipe == Recipe(epochs=7)
    assert train_defaults(["--config"]) == Train()


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    settings = Recipe().as_dict()
    for key, value in settings.items():
        for name in value if isinstance(value, dict) else [key]:
            assert f"--{name.replace('_', '-')}" in printed
    assert "MACs of one input in the end" in printed


def test_a_bar_where_there_is_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with TrainingBar(console) as bar:
        bar.title = "gated"
        bar.phase_began("train", epochs=2, steps=3, done=0, unit="images")
        bar.shown -= 2
        for loss in (2.0, 1.0, 0.75):
            bar.step_done(torch.tensor(loss), 64)
        # two seconds for the 64 images of the first step; the others come too soon to be shown
        assert bar.bar.tasks[0].fields["live"].startswith("loss 2.000, 3")
        assert bar.bar.tasks[0].fields["live"].endswith(" images/s")
        bar.epoch_done(RECORD)
        # an epoch shorter than the time between two looks does not hide the loss for ever
        bar.shown -= 2
        bar.step_done(torch.tensor(0.25), 64)
        assert bar.bar.tasks[0].fields["live"].startswith("loss 0.250, ")
        bar.say("something [worth] a line")
        bar.phase_over()
    printed = out.getvalue()
    assert "gated" in printed
    assert "epoch 1/2" in printed
    assert "test 75.00%, zeros 12.5%, MACs 0.19M" in printed
    assert "something [worth] a line" in printed
    # no lines besides the bar
    assert "s left" not in printed


RECORD = {"phase": "train", "epoch": 1, "train_loss": 0.5, "test_accuracy": 0.75, "zeros": 0.125, "macs": 190_000}


def test_what_is_left_of_a_resumed_run_counts_only_its_own_epochs() -> None:
    out = io.StringIO()
    with TrainingBar(Console(file=out, width=200)) as bar:
        bar.phase_began("train", epochs=10, steps=3, done=13, unit="images")
        bar.began -= 60
        bar.epoch_done({**RECORD, "epoch": 5})
    # a minute for the first epoch that this process has seen, five to go
    assert "train epoch 5/10" in out.getvalue()
    assert "300 s left" in out.getvalue()


def test_notes_of_epochs() -> None:
    assert epoch_parts({**RECORD, "macs": None}) == ["loss 0.500", "test 75.00%", "zeros 12.5%"]
    roads = {"train_loss": 0.5, "validation_mape": 12.345, "zeros": 0.0}
    assert epoch_parts(roads) == ["loss 0.500", "validation error 12.35%", "zeros 0.0%"]
    # what was cut is no longer there to be zero
    assert epoch_parts({**RECORD, "macs": None, "phase": "retrain"}) == ["loss 0.500", "test 75.00%"]


def test_a_stop_by_a_signal_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise StoppedError(signal.SIGINT)

    monkeypatch.setattr("diffsparse.cli.train.train", stopped)
    with pytest.raises(SystemExit) as caught:
        main([*SMALL, "--output", str(tmp_path)])
    assert caught.value.code == 130
