"""ONNX files that compute what the model computes."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.models import PreResNet
from tests.compact.nets import kill, randomise


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ds.SparsityError, match=r"diffsparse\[onnx\]"):
        ds.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "x.onnx")


@pytest.fixture
def small() -> ds.Compacted[PreResNet]:
    model = randomise(PreResNet(14, width=4))
    kill(model.stages[0][0].bn2, [0, 1])
    kill(model.stages[1][1].bn1, [0, 1, 2])
    kill(model.stages[2][0].bn2)
    return ds.compact(model.float(), torch.randn(2, 3, 8, 8))  # type: ignore[return-value]


def test_compact_model_with_adaptors_and_any_batch(small: ds.Compacted[PreResNet], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "small.onnx"
    small.model.train()
    assert ds.export_onnx(small.model, torch.randn(1, 3, 8, 8), path) < 1e-5
    assert small.model.training
    session = onnxruntime.InferenceSession(str(path))
    x = torch.randn(5, 3, 8, 8)
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        expected = small.model.eval()(x)
    assert torch.allclose(expected, torch.from_numpy(got), atol=1e-4)


def test_a_difference_is_an_error_and_leaves_no_file(small: ds.Compacted[PreResNet], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "small.onnx"
    with pytest.raises(ds.SparsityError, match="differs from the model"):
        ds.export_onnx(small.model, torch.randn(1, 3, 8, 8), path, tolerance=-1.0)
    assert not path.exists()


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ds.SparsityError, match="does not exist"):
        ds.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "no" / "x.onnx")
