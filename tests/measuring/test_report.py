import json

import pytest

from diffsparse.measuring import CONVENTION, Comparison, Latency, Measurement

FAST = Latency(median=0.001, lower_quartile=0.0009, upper_quartile=0.0012, runs=40)
SLOW = Latency(median=0.004, lower_quartile=0.0035, upper_quartile=0.01, runs=40)


def measurement(**changes):
    figures = {
        "name": "Net",
        "input": "float32[1, 3]",
        "macs": 1000,
        "product_macs": 0,
        "elementwise_flops": 30,
        "params": 200,
        "buffers": 10,
        "bytes": 840,
        "peak_activation_bytes": 64,
        "latency": SLOW,
        "device": "cpu",
        "threads": 2,
        "macs_by_module": {"a": 900, "b": 100},
    }
    return Measurement(**(figures | changes))


def test_flops_follow_the_convention():
    assert measurement().flops == 2000
    assert measurement().flops_with_elementwise == 2030
    assert measurement().convention == CONVENTION


def test_table_is_aligned_and_complete():
    first, *rows, last = str(measurement()).splitlines()
    assert first == "Net: input float32[1, 3], cpu, 2 threads"
    assert last == CONVENTION
    assert len({len(row) for row in rows}) == 1
    cells = {row.split("  ")[0]: row.split()[-1] for row in rows}
    assert cells["MACs"] == "1,000"
    assert cells["FLOPs"] == "2,000"
    assert cells["latency, median ms"] == "4.000"


def test_table_without_latency():
    text = str(measurement(latency=None, threads=1))
    assert "latency" not in text
    assert "1 thread\n" in text


@pytest.mark.parametrize("latency", [SLOW, None])
def test_measurement_is_json(latency):
    data = json.loads(json.dumps(measurement(latency=latency).as_dict()))
    assert data["flops"] == 2000
    assert data["macs_by_module"] == {"a": 900, "b": 100}
    assert data["convention"] == CONVENTION
    assert data["latency"] == (None if latency is None else latency.as_dict())


def test_ratios():
    found = Comparison(model=measurement(), other=measurement(macs=250, params=50, latency=FAST))
    assert found.speedup == 4
    assert found.ratios["macs"] == found.ratios["flops"] == found.ratios["params"] == found.ratios["latency"] == 0.25
    assert found.ratios["bytes"] == 1
    assert found.ratios["product_macs"] is None
    data = json.loads(json.dumps(found.as_dict()))
    assert data["speedup"] == 4
    assert data["other"]["macs"] == 250


def test_comparison_prints_both_and_the_ratio():
    text = str(Comparison(model=measurement(), other=measurement(name="Small", macs=250, latency=FAST)))
    first, header, macs, *_ = text.splitlines()
    assert first == "Net (model) and Small (other): input float32[1, 3], cpu, 2 threads"
    assert header.split() == ["model", "other", "other", "/", "model"]
    assert macs.split() == ["MACs", "1,000", "250", "0.2500"]
    assert "speed-up 4.00x" in text
    assert text.endswith(CONVENTION)


def test_comparison_without_latency():
    found = Comparison(model=measurement(latency=None), other=measurement(latency=None))
    assert found.speedup is None
    assert found.ratios["latency"] is None
    assert "speed-up" not in str(found)
