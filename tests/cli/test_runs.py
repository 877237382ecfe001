"""compact, measure and export take the folder of a run."""

import json
from pathlib import Path

import pytest
import torch

import diffsparse as ds
from diffsparse.cli.main import main
from diffsparse.training import Recipe, Sparsifying, train
from diffsparse.training.recorded import open_run
from tests.training.conftest import data as data
from tests.training.examples import NET


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: object) -> Path:
    """A folder with a run that has gates and one with a budget, as the working folder."""
    monkeypatch.chdir(tmp_path)
    common = {"model": NET, "epochs": 1, "batch_size": 16}
    train(Recipe(sparsifying=Sparsifying(strength=0.5), **common), tmp_path / "gated")
    train(Recipe(sparsifying=Sparsifying(macs=0.5), **common), tmp_path / "budget")
    return tmp_path


def test_a_folder_stands_for_its_model(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["measure", "budget", "--no-latency", "--output", "figures.json"])
    assert "compact / whole" in capsys.readouterr().out
    figures = json.loads((runs / "figures.json").read_text())
    result = json.loads((runs / "budget" / "result.json").read_text())
    assert figures["model"]["macs"] == result["cost"]["plain"]["macs"]
    assert figures["other"]["macs"] == result["cost"]["compact"]["macs"]
    for name in ("gated", "budget"):
        main(["compact", name, "--fold", "--output", f"{name}.safetensors"])
        run = open_run(runs / name)
        x = torch.randn(3, *run.data.input_shape)
        folded, small = (
            ds.load(f, run.fresh()).eval() for f in (f"{name}.safetensors", run.file("compact.safetensors"))
        )
        assert torch.allclose(folded(x), small(x), atol=1e-4)
    capsys.readouterr()
    main(["measure", "budget", "--weights", "budget/compact.safetensors", "--no-latency", "--input", "5x1x7x7"])
    assert "input float32[5, 1, 7, 7]" in capsys.readouterr().out


def test_export_of_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    main(["export", "budget", "--input-names", "image", "--output-names", "logits", "--opset", "18"])
    assert "model.onnx: " in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(runs / "model.onnx"))
    x = torch.randn(3, 1, 6, 6)
    (got,) = session.run(["logits"], {"image": x.numpy()})
    with torch.no_grad():
        expected = ds.load(runs / "budget" / "compact.safetensors", open_run(runs / "budget").fresh()).eval()(x)
    assert torch.allclose(expected, torch.from_numpy(got), atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", "nowhere"], "'nowhere' is not the folder of a run: unknown network 'nowhere'"),
        (["measure", "budget", "--arguments", '{"width": 3}'], "--arguments is for a class"),
        (["export", "unfinished"], "the run in 'unfinished' has no compact.safetensors: it is not finished"),
        (["compact", "runs/mistyped"], "'runs/mistyped' is not the folder of a run: there is no config.toml in it"),
        (["compact", "budget", "--output", "budget/compact.safetensors"], "is a file of the run; choose another"),
        (["measure", "budget", "--output", "budget/result.json"], "'budget/result.json' is a file of the run"),
        (["compact", "empty"], "'empty' is not the folder of a run: there is no config.toml in it"),
    ],
)
def test_folders_that_cannot_be_used(
    arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("unfinished", "empty"):
        (runs / name).mkdir()
    (runs / "unfinished" / "config.toml").write_text((runs / "budget" / "config.toml").read_text())
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_data_that_is_gone_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text('data = "cifar10"\ndata_root = "nowhere"\n')
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(tmp_path)])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "tells its input, but the data root nowhere does not exist" in said
    assert "or give the model itself: preresnet20 --weights FILE --input SHAPE" in said
