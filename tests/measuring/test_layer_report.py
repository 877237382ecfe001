"""Where the time goes, for people."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.measuring import by_layer
from diffsparse.measuring.latency_table import LatencyTable
from diffsparse.measuring.layer_report import OTHER, LayerReport, LayerTime
from diffsparse.measuring.layer_shape import LayerShape
from diffsparse.measuring.predict import predicted_seconds


class Ones(LatencyTable):
    """One second per layer; notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__("nowhere.json")
        self.asked: list[LayerShape] = []

    def layer_seconds(self, shapes: list[LayerShape]) -> list[float]:  # type: ignore[override]
        self.asked += shapes
        return [1.0] * len(shapes)

    def seconds_of(self, name: str, measure: Callable[[], float]) -> float:
        return 0.25


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


X = torch.zeros(2, 3, 8, 8)


def test_all_layers_with_their_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr("diffsparse.measuring.layer_report.has_onnxruntime", lambda: False)
    report = by_layer(network(), X, seconds=0)
    layers = report.layers["before"]
    assert list(layers) == ["0", "1", "2", "3", "4", OTHER]
    assert layers["0"].macs == 2 * 36 * 8 * 27
    assert layers["4"].params == 4 * 288 + 4
    assert all(layer.seconds >= 0 for layer in layers.values())
    assert list(report.latency) == ["torch, batch 1", "torch, batch 2"]
    assert report.predicted is None
    assert report.peak_activation_bytes[0] > 0


def test_two_networks_side_by_side_and_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    model = network().eval()
    model[1].weight.data[:4], model[1].bias.data[:4] = 0, 0
    small = ds.compact(model, X)
    report = by_layer(model, X[:1], small, seconds=0, predict=True, table=Ones())
    assert report.layers["after"]["0"].macs == report.layers["before"]["0"].macs // 2
    assert list(report.latency) == ["torch, batch 1", "onnxruntime, batch 1"]
    assert report.predicted is not None
    text = str(report)
    for words in (
        "MACs after",
        "onnxruntime, batch 1",
        "predicted by the table",
        "peak of activations",
        "of the time)",
    ):
        assert words in text
    assert report.as_dict()["layers"]["before"]["0"]["macs"] > 0


def report_of(conv: float, relu: float) -> LayerReport:
    layers = {
        "conv": LayerTime(macs=10, params=1, seconds=conv),
        "relu": LayerTime(macs=0, params=0, seconds=relu),
    }
    return LayerReport(
        networks=("before",),
        input="x",
        layers={"before": layers},
        latency={},
        predicted=None,
        peak_activation_bytes=(1,),
    )


def test_it_says_when_macs_do_not_matter() -> None:
    assert "too small" in str(report_of(1e-3, 3e-3))
    assert "too small" not in str(report_of(3e-3, 1e-3))
    lines = str(report_of(4e-3, 1e-3)).splitlines()
    assert lines[2].endswith("80.0% " + "█" * 24)
    assert lines[3].endswith("20.0% " + "█" * 6)


def test_a_prediction_counts_every_operation_that_makes_something() -> None:
    table = Ones()
    with torch.no_grad():
        # one second each, and a quarter around each
        assert predicted_seconds(network().eval(), ds.example.Example.of(X), table) == 5
    assert [shape.kind for shape in table.asked] == ["conv2d", "batch_norm", "elementwise", "linear"]
    assert (table.asked[0].inputs, table.asked[0].outputs, table.asked[3].inputs) == (3, 8, 288)


def test_a_prediction_looks_into_encoders_that_torch_fuses() -> None:
    table, layer = Ones(), torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu").eval()
    with torch.no_grad():
        predicted_seconds(layer, ds.example.Example.of(torch.zeros(3, 5, 8)), table)
    kinds = Counter(shape.kind for shape in table.asked)
    assert (kinds["linear"], kinds["attention"], kinds["curve"]) == (4, 1, 3)
    assert torch.backends.mha.get_fastpath_enabled()
    (attention,) = [shape for shape in table.asked if shape.kind == "attention"]
    assert (attention.batch, attention.size, attention.inputs) == (6, (5, 5), 4)
    assert attention.call(torch.device("cpu"))().shape == (1, 6, 5, 4)


def test_a_prediction_knows_products_and_what_pools_read() -> None:
    class Pooled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pooled = torch.nn.functional.max_pool2d(x, 4)
            return torch.bmm(pooled.flatten(2), torch.ones(2, 256, 7))

    table = Ones()
    predicted_seconds(Pooled(), ds.example.Example.of(torch.zeros(2, 4, 64, 64)), table)
    pool, _, product = table.asked
    assert (pool.kind, pool.inputs) == ("curve", 2 * 4 * 64 * 64)
    assert product.call(torch.device("cpu"))().shape == (2, 4, 7)


def test_measure_shows_the_prediction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    figures = ds.measure(network(), X, latency=False, predict=True)
    assert figures.predicted is not None
    assert figures.predicted > 0
    assert "latency, predicted ms" in str(figures)
    assert (tmp_path / "diffsparse" / "latency.json").exists()
    assert ds.measure(network(), X, latency=False).predicted is None
