"""Plans print, travel as JSON and apply to fresh instances."""

import json

import pytest
import torch

import diffsparse as ds
from diffsparse.models import PreResNet
from tests.compact.nets import kill, randomise

X = torch.randn(2, 3, 8, 8, dtype=torch.float64)


@pytest.fixture(scope="module")
def small() -> ds.Compacted[PreResNet]:
    model = randomise(PreResNet(20, width=4, bottleneck=True))
    kill(model.stages[0][1].bn1)
    kill(model.stages[1][1].bn3)
    kill(model.stages[2][0].bn2, [0, 1, 5])
    kill(model.bn, [3])
    return ds.compact(model, X)  # type: ignore[return-value]


def test_json_both_ways(small: ds.Compacted[PreResNet]) -> None:
    text = small.plan.to_json()
    assert json.loads(text)["format"] == 1
    assert ds.Plan.from_json(text) == small.plan


def test_prints_a_line_a_layer(small: ds.Compacted[PreResNet]) -> None:
    text = str(small.plan)
    assert "stages.1.1" in text
    assert "removed" in text
    assert "map, valid for input size [8, 8] only" in text


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
    with pytest.raises(ds.SparsityError, match=r"'stages\..*', which PreResNet does not have"):
        ds.apply_plan(PreResNet(8), small.plan)
    with pytest.raises(ds.SparsityError, match="which has shape"):
        ds.apply_plan(PreResNet(20, width=2, bottleneck=True), small.plan)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "tensors": 3}'])
def test_what_is_not_a_plan(text: str) -> None:
    with pytest.raises(ds.SparsityError, match="not a plan"):
        ds.Plan.from_json(text)


def test_a_newer_format_is_refused(small: ds.Compacted[PreResNet]) -> None:
    newer = small.plan.to_json().replace('"format":1', '"format":99')
    with pytest.raises(ds.SparsityError, match="format 99, newer than 1"):
        ds.Plan.from_json(newer)
