"""compact, measure and export from the command line, on a user's own class."""

import json
from pathlib import Path

import pytest
import torch

import diffsparse as ds
from diffsparse.cli.main import main

MODULE = """
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module `usernet` and a gated file of it, as the working folder."""
    (tmp_path / "usernet.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import usernet  # type: ignore[import-not-found]

    net = usernet.Net()
    net.body[1].weight.data[:5] = 0
    ds.save(ds.sparsify(net), tmp_path / "gated.safetensors")
    return tmp_path


NET = ["usernet:Net", "--weights", "gated.safetensors", "--input", "2x1x6x6"]


def test_compact_then_measure_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compact", *NET, "--output", "small.safetensors", "--plan", "plan.json"])
    printed = capsys.readouterr().out
    assert "out 8 -> 3" in printed
    assert "FLOPs = 2 x MACs" in printed
    assert ds.Plan.from_json((folder / "plan.json").read_text()).layers["body.0"].outputs == (8, 3)
    main(["measure", *NET, "--other", "small.safetensors", "--seconds", "0.01", "--output", "figures.json"])
    assert "speed-up" in capsys.readouterr().out
    assert json.loads((folder / "figures.json").read_text())["ratios"]["macs"] < 0.5
    main(["measure", *NET, "--no-latency"])
    assert "MACs" in capsys.readouterr().out


def test_optimize_decides_by_the_clock(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compact", *NET, "--output", "small.safetensors", "--optimize", "latency", "--seconds", "0.2"])
    assert "ms of" in capsys.readouterr().out
    import usernet

    x = torch.randn(2, 1, 6, 6)
    gated, small = (ds.load(name, usernet.Net()).eval() for name in ("gated.safetensors", "small.safetensors"))
    assert torch.allclose(gated(x), small(x), atol=1e-5)
    with pytest.raises(SystemExit) as stopped:
        main(["compact", *NET, "--optimize", "latency", "--round-to", "4"])
    assert stopped.value.code == 2
    assert "leave out round_to=4" in capsys.readouterr().err


def test_measure_by_layer_and_the_prediction(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr("diffsparse.measuring.layer_report.has_onnxruntime", lambda: False)
    main(["measure", *NET, "--layers", "--predict", "--seconds", "0.01", "--output", "figures.json"])
    printed = capsys.readouterr().out
    for words in ("body.0", "torch, batch 1", "torch, batch 2", "latency, predicted ms", "peak of activations"):
        assert words in printed
    assert "head" in json.loads((folder / "figures.json").read_text())["by_layer"]["layers"]["before"]


def test_compacted_file_loads_into_the_users_class(folder: Path) -> None:
    main(["compact", *NET, "--output", "small.safetensors", "--fold", "--round-to", "2"])
    import usernet

    x = torch.randn(2, 1, 6, 6)
    gated = ds.load("gated.safetensors", usernet.Net()).eval()
    small = ds.load("small.safetensors", usernet.Net()).eval()
    assert torch.allclose(gated(x), small(x), atol=1e-5)
    assert small.body[0].out_channels == 4


def test_a_file_that_is_already_compact_can_be_folded(folder: Path) -> None:
    main(["compact", *NET, "--output", "small.safetensors"])
    again = ["usernet:Net", "--weights", "small.safetensors", "--input", "2x1x6x6", "--output", "folded.safetensors"]
    main(["compact", *again, "--fold"])
    import usernet

    x = torch.randn(2, 1, 6, 6)
    small = ds.load("small.safetensors", usernet.Net()).eval()
    folded = ds.load("folded.safetensors", usernet.Net()).eval()
    assert folded.body[0].out_channels == 3
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    assert torch.allclose(folded(x), small(x), atol=1e-5)


def test_export(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    main(["export", *NET, "--output", "net.onnx"])
    assert "largest relative difference" in capsys.readouterr().out
    assert (folder / "net.onnx").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["usernet"], "package.module:Name"),
        (["usernet:Missing"], "cannot find usernet:Missing"),
        (["nothing_here:Net"], "cannot find nothing_here:Net"),
        (["usernet:number"], "cannot be called"),
        (["usernet:Net", "--arguments", "[1]"], "JSON object"),
        (["usernet:Net", "--arguments", "{"], "JSON object"),
        (["usernet:Net", "--arguments", '{"depth": 3}', "--input", "1x1x6x6"], "cannot be called with"),
        (["usernet:Net", "--input", "1xx2"], "got '1xx2'"),
        (["usernet:Net", "--input", "1x3x6x6"], "does not run on the example"),
        (["usernet:Net", "--weights", "no.safetensors", "--input", "1x1x6x6"], "no.safetensors"),
        (["usernet:Net", "--output", "no/folder/x", "--input", "1x1x6x6"], "does not exist"),
        (["usernet:Net", "--output", ".", "--input", "1x1x6x6"], "is a folder"),
        (["."], "'.' is not the folder of a run: there is no config.toml in it"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_input_exits_with_two(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compact", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
