"""Plans print, travel as JSON and apply to fresh instances."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.models import PreResNet
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise

X = torch.randn(2, 3, 8, 8, dtype=torch.float64)


@pytest.fixture(scope="module")
def small() -> ds.Compacted[PreResNet]:
    model = randomise(PreResNet(20, width=4, bottleneck=True))
    zero_channels(model.stages[0][1].bn1)
    zero_channels(model.stages[1][1].bn3)
    zero_channels(model.stages[2][0].bn2, [0, 1, 5])
    zero_channels(model.bn, [3])
    return ds.compact(model, X)  # type: ignore[return-value]


def test_json_both_ways(small: ds.Compacted[PreResNet]) -> None:
    text = small.plan.to_json()
    assert json.loads(text)["format"] == 2
    assert ds.Plan.from_json(text) == small.plan


def test_prints_a_line_a_layer(small: ds.Compacted[PreResNet]) -> None:
    text = str(small.plan)
    assert "stages.1.1" in text
    assert "removed" in text
    assert "out 16 -> 16, map" in text


def test_applies_to_a_fresh_instance_gated_or_not(small: ds.Compacted[PreResNet]) -> None:
    expected = {key: value.shape for key, value in small.model.state_dict().items()}
    for fresh in (PreResNet(20, width=4, bottleneck=True), ds.sparsify(PreResNet(20, width=4, bottleneck=True))):
        before = [p.shape for p in fresh.parameters()]
        shrunk = ds.apply_plan(fresh, small.plan)
        assert {key: value.shape for key, value in shrunk.state_dict().items()} == expected
        assert shrunk(X.float()).shape == (2, 10)
        assert [p.shape for p in fresh.parameters()] == before


def test_weights_loaded_into_the_fresh_instance_give_the_same_outputs(small: ds.Compacted[PreResNet]) -> None:
    shrunk = ds.apply_plan(PreResNet(20, width=4, bottleneck=True).double(), small.plan).eval()
    shrunk.load_state_dict(small.model.state_dict())
    with torch.no_grad():
        assert torch.equal(shrunk(X), small.model.eval()(X))


def test_another_class_is_refused_by_name(small: ds.Compacted[PreResNet]) -> None:
    with pytest.raises(ds.SparsityError, match=r"'stages\..*PreResNet"):
        ds.apply_plan(PreResNet(8), small.plan)
    with pytest.raises(ds.SparsityError, match="which has shape"):
        ds.apply_plan(PreResNet(20, width=2, bottleneck=True), small.plan)


def test_a_plan_for_another_width_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model[1].weight.data[:4] = 0
    plan = ds.compact(model, torch.randn(2, 3)).plan
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    tensors = {name: replace(kept, shape=shapes[name]) for name, kept in plan.tensors.items()}
    plan = ds.Plan.from_json(replace(plan, tensors=tensors).to_json())
    assert ds.apply_plan(model, plan)[0].out_features == 4
    wider = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    with pytest.raises(ds.SparsityError, match=r"made for '0.weight' of shape \(8, 3\), which has shape \(16, 3\)"):
        ds.apply_plan(wider, plan)


def test_wrong_kinds_are_refused(small: ds.Compacted[PreResNet]) -> None:
    with pytest.raises(ds.SparsityError, match=r"model must be a torch.nn.Module, got None"):
        ds.apply_plan(None, small.plan)  # type: ignore[type-var]
    for plan in (None, small, small.plan.to_json()):
        with pytest.raises(ds.SparsityError, match="plan must be a Plan"):
            ds.apply_plan(PreResNet(20, width=4, bottleneck=True), plan)  # type: ignore[arg-type]


def test_a_plan_that_breaks_a_layer_is_an_error_in_words() -> None:
    plan = ds.Plan.from_json(
        EMPTY.replace('"layers":{}', '"layers":{"0":{"action":"ragged","outputs":[2,2],"blocks":[]}}')
    )
    with pytest.raises(ds.SparsityError, match="cannot be applied to Sequential"):
        ds.apply_plan(nn.Sequential(nn.Linear(2, 2)), plan)


EMPTY = ds.Plan(tensors={}, layers={}).to_json()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2}', '{"format": 2, "tensors": 3}', "[" * 100_000, b"\xff", None, 3]
)
def test_what_is_not_a_plan(text: Any) -> None:
    with pytest.raises(ds.SparsityError, match="not a plan"):
        ds.Plan.from_json(text)


def test_bytes_are_read_too(small: ds.Compacted[PreResNet]) -> None:
    assert ds.Plan.from_json(small.plan.to_json().encode()) == small.plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 0}, "format must be a whole number of at least 1, got 0"),
        ({"format": "1"}, "format must be a whole number"),
        ({"format": True}, "format must be a whole number"),
        ({"tensors": []}, "tensors must be a table"),
        ({"tensors": {"w": None}}, "'w' of tensors must be a table, got None"),
        ({"tensors": {"w": {}}}, "'w' of tensors has no 'dims'"),
        (
            {"tensors": {"w": {"dims": {"x": [0]}}}},
            "keys of 'dims' of 'w' of tensors must be whole numbers of at least 0, got 'x'",
        ),
        ({"tensors": {"w": {"dims": {"-1": [0]}}}}, "keys of 'dims' of 'w' .* at least 0, got '-1'"),
        (
            {"tensors": {"w": {"dims": {"0": [-1]}}}},
            "'0' of 'dims' of 'w' .* must be indices of at least 0 in rising order",
        ),
        ({"tensors": {"w": {"dims": {"0": [1.5]}}}}, "entry 0 of '0' of 'dims' of .* cannot be 1.5"),
        ({"tensors": {"w": {"dims": {"0": [2, 1]}}}}, "'0' of 'dims' of 'w' .* in rising order, got .2, 1."),
        ({"tensors": {"w": {"dims": {"0": [1, 1]}}}}, "rising order"),
        ({"tensors": {"w": {"dims": {}, "columns": [[3, 2]]}}}, "entry 0 of 'columns' of 'w' .* in rising order"),
        ({"tensors": {"w": {"dims": {}, "shape": "big"}}}, "'shape' of 'w' of tensors must be a list, got 'big'"),
        ({"tensors": {"w": {"dims": {}, "extra": 1}}}, "'w' of tensors has unknown key 'extra'"),
        ({"layers": {"c": {}}}, "'action' of 'c' of layers must be one of sliced, .*, got None"),
        ({"layers": {"c": {"action": "melted"}}}, "'action' of 'c' of layers must be one of sliced, .*, got 'melted'"),
        ({"layers": {"c": {"action": ["sliced"]}}}, "'action' of 'c' of layers must be one of"),
        ({"layers": {"c": {"action": "map", "stretches": [None]}}}, "'c' of layers has no 'outputs'"),
        ({"layers": {"c": {"action": "map", "outputs": [2, 2], "stretches": []}}}, "'c' of layers has no 'shape'"),
        (
            {
                "layers": {
                    "c": {"action": "map", "outputs": [2, 2], "shape": [1], "stretches": [{"dim": 0, "stride": 0}]}
                }
            },
            "'stride' of entry 0 of 'stretches' of .* must be a whole number of at least 1, got 0",
        ),
        ({"layers": {"c": {"action": "ragged", "outputs": [2, 2]}}}, "'c' of layers has no 'blocks'"),
        ({"layers": {"c": {"action": "sliced", "adds_bias": True}}}, "'c' of layers has no 'outputs'"),
        ({"layers": {"c": {"action": "sliced", "outputs": [2, 1], "adds_bias": 1}}}, "'adds_bias' of .* cannot be 1"),
        ({"layers": {"c": {"action": "sliced", "outputs": [1, 2, 3]}}}, "'outputs' of .* must be a list of 2, got"),
        ({"layers": {"c": {"action": "sliced", "outputs": [2, 1], "dim": "first"}}}, "'dim' of .* cannot be 'first'"),
        ({"layers": {"c": {"action": "sliced", "outputs": [2, 1], "select": [1, 0]}}}, "'select' of .* rising order"),
        ({"kept": {}}, "kept must be a list, got {}"),
        ({"kept": [{"layer": "c"}]}, "entry 0 of kept has no 'reason'"),
        ({"kept": [{"layer": "c", "reason": 3}]}, "'reason' of entry 0 of kept cannot be 3"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ds.SparsityError, match=f"not a plan of diffsparse: .*{message}"):
        ds.Plan.from_json(json.dumps(json.loads(EMPTY) | change))


def test_a_plan_without_shapes(small: ds.Compacted[PreResNet]) -> None:
    data = json.loads(small.plan.to_json())
    for entry in data["tensors"].values():
        del entry["shape"]
    assert all(kept.shape is None for kept in ds.Plan.from_json(json.dumps(data)).tensors.values())


def test_a_newer_format_is_refused(small: ds.Compacted[PreResNet]) -> None:
    newer = small.plan.to_json().replace('"format":2', '"format":99')
    with pytest.raises(ds.SparsityError, match="format 99, newer than 2"):
        ds.Plan.from_json(newer)


def test_the_format_of_the_first_version_is_refused_with_what_to_do(small: ds.Compacted[PreResNet]) -> None:
    older = small.plan.to_json().replace('"format":2', '"format":1')
    with pytest.raises(ds.SparsityError, match=r"format 1 of diffsparse 0.1, .*; compact the model again"):
        ds.Plan.from_json(older)
