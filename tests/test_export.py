"""ONNX files that compute what the model computes."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse import export
from diffsparse.models import PreResNet, ResNet
from diffsparse.models.postactivation import PostActivationBottleneck
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ds.SparsityError, match="pip install onnx onnxruntime onnxscript"):
        ds.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "x.onnx")


@pytest.fixture
def small() -> ds.Compacted[PreResNet]:
    model = randomise(PreResNet(14, width=4))
    zero_channels(model.stages[0][0].bn2, [0, 1])
    zero_channels(model.stages[1][1].bn1, [0, 1, 2])
    zero_channels(model.stages[2][0].bn2)
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


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_adaptors_become_cheap_operators(shift: float, tmp_path: Path) -> None:
    """Zeros that an expand puts back are padded and gathered; other numbers are concatenated and gathered."""
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    model, x = randomise(ResNet(4, blocks=(3,), width=4)).float(), torch.randn(2, 3, 16, 16)
    for number, block in enumerate(m for m in model.modules() if isinstance(m, PostActivationBottleneck)):
        dead = [number, number + 3, number + 7]
        zero_channels(block.bn3, dead)
        # another number in each of the dead channels
        block.bn3.bias.data[dead] = shift * torch.arange(3.0)
    # memory that has channels last must not show in the file
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    compacted = ds.compact(model, x)
    assert any(getattr(action, "expand", None) for action in compacted.plan.layers.values())
    ds.export_onnx(compacted, x, tmp_path / "small.onnx")
    operators = {node.op_type for node in onnx.load(tmp_path / "small.onnx").graph.node}
    assert not {op for op in operators if op.startswith("Scatter")} | operators & {"Transpose"}
    assert operators >= ({"Concat", "Gather"} if shift else {"Pad", "Gather"})


class Nested(nn.Module):
    def forward(
        self, a: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], more: dict[str, torch.Tensor], double: bool
    ) -> list[torch.Tensor]:
        return [a + 2 * pair[0] - pair[1] * (2 if double else 1), more["z"] * 3 + more["y"]]


def test_nested_inputs_in_any_order(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pair, more = (torch.randn(2, 4), torch.randn(2, 4)), {"z": torch.randn(2, 4), "y": torch.randn(2, 4)}
    inputs = {"more": more, "double": True, "pair": pair, "a": torch.randn(2, 4)}
    assert ds.export_onnx(Nested(), inputs, tmp_path / "named.onnx") < 1e-5
    assert ds.export_onnx(Nested(), (inputs["a"], pair, more, True), tmp_path / "placed.onnx") < 1e-5


class Fixed(nn.Module):
    """Two rows, whatever comes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 8)


class Special(nn.Module):
    """Takes any batch and treats that of two in a way of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 2 else x


class Deciding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, 3


TWO = torch.ones(2, 8)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (nn.Linear(3, 1), TWO, r"Linear does not run on the example \(float32\[2, 8\]\)"),
        (Fixed(), TWO, r"batch must be free to change, but Fixed does not run on the example \(float32\[3, 8\]\)"),
        (Special(), TWO, "Special cannot be exported to ONNX: its batch must be free to change"),
        (Deciding(), TWO, "Deciding cannot be exported to ONNX: Could not guard on data-dependent"),
        (Counting(), TWO, "Counting returns 3, and an ONNX file gives tensors only"),
        (None, TWO, "model must be a torch.nn.Module, got None"),
        (nn.Linear(8, 1), [TWO], "got list"),
    ],
)
def test_a_failure_is_one_line_and_leaves_the_old_file(model: Any, inputs: Any, message: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "net.onnx"
    path.write_bytes(b"old")
    with pytest.raises(ds.SparsityError, match=message) as caught:
        ds.export_onnx(model, inputs, path)
    assert len(str(caught.value).splitlines()) == 1
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_difference_is_an_error_and_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "net.onnx"
    model = nn.Linear(8, 2)
    ds.export_onnx(model, TWO, path)
    good = path.read_bytes()
    monkeypatch.setattr(export, "difference", lambda *_: 0.5)
    with pytest.raises(ds.SparsityError, match=r"differs from the model by 0.5, more than 0.1"):
        ds.export_onnx(model, TWO, path, tolerance=0.1)
    assert path.read_bytes() == good
    assert list(tmp_path.iterdir()) == [path]


def test_a_graph_that_onnxruntime_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export, "onnx_graph", lambda *_, **__: b"no graph")
    with pytest.raises(ds.SparsityError, match="onnxruntime does not take the exported graph"):
        ds.export_onnx(nn.Linear(8, 2), TWO, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_a_result_of_compact_is_exported_as_its_model(small: ds.Compacted[PreResNet], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for thing, name in ((small, "result"), (small.model, "model")):
        ds.export_onnx(thing, torch.randn(1, 3, 8, 8), tmp_path / name)
    assert (tmp_path / "result").stat().st_size == (tmp_path / "model").stat().st_size


@pytest.mark.parametrize("tolerance", ["x", None, -1.0, float("nan")])
def test_wrong_tolerances(tolerance: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ds.SparsityError, match="tolerance must be a finite number of at least 0"):
        ds.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "x.onnx", tolerance=tolerance)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ds.SparsityError, match="there is no folder"):
        ds.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "no" / "x.onnx")
    with pytest.raises(ds.SparsityError, match="it is a folder"):
        ds.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path)
    with pytest.raises(ds.SparsityError, match="path must be the path of a file, got None"):
        ds.export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), None)  # type: ignore[arg-type]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        marked = self.layer(tokens) * mask[..., None]
        return marked, marked.mean(1)


def shapes(path: Path) -> tuple[dict[str, list[str | int]], int]:
    """Inputs and outputs of a file with their dimensions, and its opset, read by the onnx package."""
    onnx = pytest.importorskip("onnx")
    found = onnx.load(str(path))
    sizes = {
        entry.name: [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        for entry in (*found.graph.input, *found.graph.output)
    }
    return sizes, found.opset_import[0].version


def test_names_of_inputs_outputs_and_dimensions_and_the_opset(tmp_path: Path) -> None:
    path, example = tmp_path / "net.onnx", {"mask": torch.ones(2, 5), "tokens": torch.randn(2, 5, 4)}
    ds.export_onnx(Pair(), example, path, dynamic={0: "batch", 1: "length"}, opset=19)
    expected = {
        "mask": ["batch", "length"],
        "tokens": ["batch", "length", 4],
        "output_0": ["batch", "length", 3],
        "output_1": ["batch", 3],
    }
    assert shapes(path) == (expected, 19)
    names = {"input_names": ["which", "what"], "output_names": ["each", "mean"]}
    ds.export_onnx(Pair(), example, path, **names)
    sizes, _ = shapes(path)
    assert sizes == {"which": ["batch", 5], "what": ["batch", 5, 4], "each": ["batch", 5, 3], "mean": ["batch", 3]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_names": ["a"]}, r"input_names must be 2 different names, one per tensor, got \['a'\]"),
        ({"input_names": ["a", "a"]}, "input_names must be 2 different names"),
        ({"output_names": "ab"}, "output_names must be 2 different names"),
        ({"opset": 9}, "PyTorch cannot write opset 9, only 18 or newer"),
        ({"dynamic": {-1: "x"}}, "an entry of dynamic must be a whole number of at least 0"),
    ],
)
def test_wrong_names_and_opsets_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(ds.SparsityError, match=message):
        ds.export_onnx(Pair(), (torch.randn(2, 5, 4), torch.ones(2, 5)), tmp_path / "net.onnx", **options)
    assert not (tmp_path / "net.onnx").exists()
