"""Every command in README and the guides is one that the command line takes; training runs with tiny settings.

The demos run in tests/cli, with fewer epochs.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from diffsparse.cli import main as command_line
from diffsparse.cli.main import main
from diffsparse.cli.train import Train
from tests.documents.blocks import BLOCKS, ROOT, commands
from tests.text.files import write_both

NO_COMMANDS = {"architecture.md": "the folders"}
"""Pages with a block that is a picture made of letters."""
SHELL = [words for b in BLOCKS if b.language == "" and b.page not in NO_COMMANDS for words in commands(b.text)]
DIFFSPARSE = [words[words.index("diffsparse") + 1 :] for words in SHELL if "diffsparse" in words]
TRAINED = [words for words in DIFFSPARSE if words[0] == "train"]
SMALLER = {
    "preresnet20": "preresnet8-0.25",
    "wired-mobilenet-0.25": "wired-mobilenet-0.125-small",
    "gpt-mini": "gpt-mini-0.25",
    "bert-mini": "bert-mini-0.25",
}
TINY = {"--epochs": "1", "--retrain-epochs": "1", "--batch-size": "64", "--warmup-epochs": "0", "--delay-epochs": "0"}


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    assert {words[0] for words in SHELL} <= {"diffsparse", "pip", "make", "python", "torchrun", "tensorboard", "mkdir"}
    assert {words[0] for words in DIFFSPARSE} <= command_line.COMMANDS.keys() | {"--tyro-write-completion"}


@pytest.mark.parametrize("words", DIFFSPARSE, ids=" ".join)
def test_commands_are_understood_as_written(words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    for kind in command_line.COMMANDS.values():
        monkeypatch.setattr(kind, "run", lambda command: asked.append(command))
    # the shell makes names of this
    given = [word.replace("*", "one") for word in words if "completion" not in words[0]]
    if not given:
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(SystemExit) as stopped:
            main([words[0], words[1], str(tmp_path / "diffsparse")])
        assert not stopped.value.code
        assert "complet" in (tmp_path / "diffsparse").read_text()
        return
    main(given)
    (command,) = asked
    if isinstance(command, Train):
        command.recipe.check()


def tiny(words: list[str], root: Path) -> list[str]:
    """The same command with a small network, one epoch and data that needs no files, or made files of text."""
    made, images = list(words), "cifar10" in words or "--config" in words
    for place, word in enumerate(words):
        if word in TINY:
            made[place + 1] = TINY[word]
        elif word == "--config":
            made[place : place + 2] = ["--model", "preresnet8-0.25"]
        elif word == "--output":
            made[place + 1] = "run"
    made = [SMALLER.get(word, word) for word in made]
    if "--data-root" in made:
        at = made.index("--data-root")
        made[at : at + 2] = [] if images else ["--data-root", str(root)]
    made = [{"cifar10": "digits"}.get(word, word) for word in made]
    if "--model" not in made:
        made += ["--model", "preresnet8-0.25"]
    if "text" in made:
        made += ["--batch-size", "16"]
    if "--epochs" not in made:
        made += ["--epochs", "1"]
    if "--output" not in made:
        made += ["--output", "run"]
    return [*made, "--threads", "1"]


# one of several commands that are the same when they are tiny; resnet50 on ImageNet cannot be made tiny, and a test of
# its own follows README
DISTINCT = {
    frozenset(tiny(words, Path("DIR"))): words
    for words in TRAINED
    if "imagenet" not in words and words[:4] != ["train", "--model", "preresnet20", "--data"]
}


@pytest.mark.parametrize("words", DISTINCT.values(), ids=" ".join)
@pytest.mark.filterwarnings("ignore::diffsparse.SparsityWarning")
def test_training_commands_run(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("transformers")
    (tmp_path / "text").mkdir()
    monkeypatch.chdir(tmp_path)
    main(tiny(words, write_both(tmp_path / "text")))
    for name in ("compact.safetensors", "result.json"):
        assert (tmp_path / "run" / name).exists()


def test_the_first_page_from_train_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    page = [words[1:] for b in BLOCKS if b.page == "README.md" and not b.language for words in commands(b.text)]
    main([*tiny(next(w for w in page if w[0] == "train"), tmp_path)[:-4], "--output", "runs/half", "--threads", "1"])
    for name in ("measure", "export", "report"):
        (words,) = [words for words in page if words[0] == name]
        main([word.replace("*", "half") for word in words])
    printed = capsys.readouterr().out
    assert "speed-up" in printed
    assert (tmp_path / "half.onnx").exists()


def test_scripts_targets_and_extras_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    mentioned = " ".join(block.text for block in BLOCKS)
    for words in SHELL:
        for place, word in enumerate(words):
            if word.endswith(".py"):
                text = (ROOT / word).read_text()
                assert all(option in text for option in words[place:] if option.startswith("--")), words
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
    for names in re.findall(r"'\.\[([\w,-]+)\]'", mentioned + (ROOT / "README.md").read_text()):
        assert set(names.split(",")) <= extras.keys(), names
