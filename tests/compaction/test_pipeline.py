"""What a user sees of `compact`."""

import copy
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction import recording
from diffsparse.models import PreResNet
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise, same


def chain() -> nn.Sequential:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)]
    return randomise(nn.Sequential(*layers))  # type: ignore[return-value]


X = torch.randn(2, 3, 7, 7, dtype=torch.float64)


def test_a_chain_shrinks_to_its_live_channels_and_keeps_its_class() -> None:
    model = chain()
    zero_channels(model[1], [0, 3, 5])
    small = ds.compact(model, X)
    assert type(small.model) is nn.Sequential
    assert (small.model[0].out_channels, small.model[1].num_features, small.model[3].in_channels) == (5, 5, 5)
    assert small.max_difference < 1e-9
    assert same(model, small.model, torch.randn(3, 3, 9, 11, dtype=torch.float64))
    assert small.after.macs < small.before.macs
    assert not small.constant_output
    assert small.fallbacks == ()
    assert list(small.model.state_dict()) == list(model.state_dict())


def test_the_model_given_is_untouched() -> None:
    model = ds.sparsify(chain())
    kept = copy.deepcopy(model.state_dict())
    model.train()
    small = ds.compact(model, X)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(module.training for module in small.model.modules())
    assert all(torch.equal(kept[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_sparse_batch_norms_become_ordinary_ones() -> None:
    model = chain()
    zero_channels(model[1], [1])
    gated = ds.sparsify(copy.deepcopy(model))
    small = ds.compact(gated, X)
    assert type(small.model[1]) is nn.BatchNorm2d
    assert same(model, small.model, X)
    assert not [name for name, _ in small.model.named_parameters() if "gate" in name]


def test_a_constant_channel_folds_into_the_next_bias() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1, bias=False))
    randomise(model)
    model[1].weight.data[2] = 0
    small = ds.compact(model, X)
    assert small.model[2].in_channels == 3
    assert small.model[2].bias is not None
    assert small.plan.layers["2"].adds_bias
    assert same(model, small.model, torch.randn(1, 3, 4, 4, dtype=torch.float64))


def test_a_constant_channel_in_front_of_zero_padding_stays_exact_at_the_border() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3, padding=1))
    randomise(model)
    model[1].weight.data[2] = 0
    small = ds.compact(model, X)
    assert same(model, small.model, torch.randn(1, 3, 4, 9, dtype=torch.float64))


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("round_to", [1, 4])
def test_rounding_and_folding(fold: bool, round_to: int) -> None:
    model = randomise(PreResNet(14, width=8))
    for block in model.stages.modules():
        if hasattr(block, "bn2"):
            zero_channels(block.bn2, [0, 2, 5])
    small = ds.compact(model, X, fold=fold, round_to=round_to)
    assert same(model, small.model, torch.randn(1, 3, 9, 9, dtype=torch.float64))
    widths = [m.out_channels for m in small.model.modules() if isinstance(m, nn.Conv2d)]
    assert all(width % round_to == 0 for width in widths)
    norms = [m for m in small.model.modules() if isinstance(m, nn.BatchNorm2d)]
    # the batch norms in front of the blocks have no layer in front of them
    assert len(norms) == (7 if fold else 13)
    if round_to == 1:
        assert 5 in widths


class Reports(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))
        self.head = nn.Conv2d(6, 2, 1)

    @dataclass
    class Output:
        logits: Tensor
        extra: dict[str, list[Tensor]]

    def forward(self, x: Tensor, scale: Tensor) -> "Reports.Output":
        features = F.relu(self.first(x))
        return self.Output(logits=self.head(features) * scale, extra={"all": [features.mean((2, 3))]})


def test_several_inputs_and_a_dataclass_output() -> None:
    model = randomise(Reports())
    zero_channels(model.first[1], [0, 1])
    scale = torch.tensor(2.0, dtype=torch.float64)
    small = ds.compact(model, (X, scale))
    assert small.max_difference < 1e-9
    assert small.model(X, scale).extra["all"][0].shape == (2, 6)
    assert small.model.first[0].out_channels == 4
    by_name = ds.compact(model, {"x": X, "scale": scale})
    assert by_name.plan == small.plan


def test_code_that_insists_on_the_original_width_gets_it() -> None:
    class Insists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
            self.b = nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            assert x.shape[1] == 8
            return self.b(x.view(x.shape[0], 2, 4, 5, 5).reshape(-1, 8, 5, 5))

    model = randomise(Insists())
    zero_channels(model.a[1], [0, 1, 2])
    small = ds.compact(model, X)
    assert small.max_difference < 1e-9
    assert small.model.a[0].out_channels == 5
    assert small.model.b.in_channels == 5


def test_attempts_after_the_first_do_not_record_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
            self.b = nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            if x.shape[1] != 8:
                raise RuntimeError("eight channels are needed")
            return self.b(x)

    model = randomise(Refuses())
    zero_channels(model.a[1], [0, 1, 2])
    record, runs = recording.capture, []
    monkeypatch.setattr(recording, "capture", lambda *given, **how: runs.append(given) or record(*given, **how))
    small = ds.compact(model, X)
    assert len(runs) == 1
    assert small.fallbacks == ("eight channels are needed",)
    assert (small.model.a[0].out_channels, small.model.b.in_channels) == (5, 5)
    assert same(model, small.model, torch.randn(3, 3, 9, 11, dtype=torch.float64))


def test_strict_names_what_no_rule_describes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1))
    small = ds.compact(model, X.float())
    assert [entry.layer for entry in small.kept] == ["1"]
    assert "group_norm" in small.kept[0].reason
    with pytest.raises(ds.SparsityError, match="group_norm"):
        ds.compact(model, X.float(), strict=True)


def test_a_fully_dead_network_gives_its_constant_and_a_warning() -> None:
    model = chain()
    zero_channels(model[1])
    zero_channels(model[4])
    with pytest.warns(ds.SparsityWarning, match="no longer depends on its input"):
        small = ds.compact(model, X)
    assert small.constant_output
    assert same(model, small.model, torch.randn(5, 3, 12, 12, dtype=torch.float64))
    assert small.after.macs == 0


@pytest.mark.parametrize(
    ("example", "message"),
    [(torch.zeros(2, 5, 7, 7, dtype=torch.float64), "does not run on the example"), ("x", "got str")],
)
def test_an_example_that_does_not_fit(example: object, message: str) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        ds.compact(chain(), example)


def test_other_mistakes() -> None:
    with pytest.raises(ds.SparsityError, match=r"round_to must be .*, got 0"):
        ds.compact(chain(), X, round_to=0)


def test_a_rule_that_lies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffsparse.compaction.rules.pointwise import Pointwise

    monkeypatch.setattr(Pointwise, "_fixed", lambda self, node, graph, count: np.ones(count, bool))
    model = chain()
    small = ds.compact(model, X)
    assert small.plan.layers == {}
    assert not small.constant_output
    assert "every smaller model gives other outputs" in str(small)
    assert same(model, small.model, X)


def test_training_goes_on_and_gradients_reach_every_parameter() -> None:
    model = chain()
    zero_channels(model[1], [0, 3])
    small = ds.compact(ds.sparsify(model), X).model.train()
    small(X).square().mean().backward()
    assert all(p.grad is not None and p.requires_grad for p in small.parameters())


def test_printed_result_has_layers_and_costs() -> None:
    model = chain()
    zero_channels(model[1], [0])
    text = str(ds.compact(model, X))
    assert "out 8 -> 7" in text
    assert "MACs" in text
    assert "difference" in text


def test_printed_macs_are_those_of_one_sample() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()
    model[1].weight.data[:6].zero_()
    small = ds.compact(model, torch.randn(64, 4))
    assert re.search(r"MACs +12 of +48 \(25.0%\)", str(small))
    assert small.after.macs == 64 * 12


def test_printed_macs_where_dimension_0_is_no_batch() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)).eval()
    assert re.search(r"MACs +500 of +500 ", str(ds.compact(model, torch.randn(3, 5, 5))))


class SeveralOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return {"dead": self.norm(self.a(x)), "live": self.b(x), "table": self.b.weight}


def test_an_output_among_others_that_became_constant_is_named():
    model = SeveralOutputs().eval()
    model.norm.weight.data.zero_()
    with pytest.warns(ds.SparsityWarning, match="output 'dead' of SeveralOutputs: no longer depends on its input"):
        small = ds.compact(model, torch.randn(2, 4))
    assert not small.constant_output


class Masked(nn.Module):
    """Leaves the mask out where it hides nothing, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x, mask):
        y = self.norm(self.value(x).mT).mT
        if not bool(mask.all()):
            y = y * mask.to(y.dtype)[..., None]
        return self.last(y)


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.filterwarnings("error")
def test_code_that_asks_masks_is_tried_with_other_masks(hides):
    torch.manual_seed(0)
    model = Masked().double().eval()
    with torch.no_grad():
        model.norm.weight[:4], model.norm.bias[:3], model.norm.bias[3] = 0, 1.5, 0
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, 3:] = int(not hides)
    small = ds.compact(model, {"x": torch.randn(2, 5, 4, dtype=torch.float64), "mask": mask})
    # the zero goes; the other constants are none where the mask hides them
    assert small.model.last.in_features == 5
    x = torch.randn(3, 6, 4, dtype=torch.float64)
    for shown in (6, 5, 1):
        mask = (torch.arange(6) < shown).long().expand(3, 6)
        assert torch.allclose(small.model(x, mask), model(x, mask), rtol=0, atol=1e-10)


def test_a_read_of_other_data_still_warns():
    class Branches(Masked):
        def forward(self, x, mask):
            return super().forward(x if bool(x.sum() > -1e9) else -x, mask)

    mask = torch.ones(2, 5, dtype=torch.long)
    with pytest.warns(ds.SparsityWarning, match="reads the data of a tensor"):
        ds.compact(Branches().eval(), {"x": torch.randn(2, 5, 4), "mask": mask})
