"""Network Slimming against a slow ranking, a model masked by hand and counts."""

import copy
import math

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.measuring import measure
from diffsparse.methods import Cut, Method, Slimming
from diffsparse.methods.slimming import TOLERANCE, without_smallest
from diffsparse.models import PreResNet
from tests.methods.tiny import EXAMPLE, accuracy, agree, net, spread, state, train, unchanged

CHANNELS = 60


def masked_by_hand(model: nn.Module, count: int) -> nn.Module:
    """Scales sorted one by one in plain Python; the smallest lose scale and shift."""
    masked = copy.deepcopy(model)
    norms = [module for module in masked.modules() if isinstance(module, nn.BatchNorm2d)]
    places = [(abs(norm.weight[i].item()), n, i) for n, norm in enumerate(norms) for i in range(norm.num_features)]
    for _, n, i in sorted(places)[:count]:
        norms[n].weight.data[i] = 0
        norms[n].bias.data[i] = 0
    return masked


def share(cut: Cut, model: nn.Module) -> float:
    return measure(cut.model, EXAMPLE, latency=False).macs / measure(model, EXAMPLE, latency=False).macs


def slim(model: nn.Module, **target: float) -> Cut:
    return Slimming(strength=1e-4, **target).cut(model, EXAMPLE)


def test_scales_start_where_asked_and_shifts_stay() -> None:
    model = spread(net())
    shifts = [norm.bias.clone() for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)]
    assert Slimming(strength=0.1, target=0.5, start=0.25).prepare(model) is model
    norms = [norm for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)]
    assert all(torch.equal(norm.weight, torch.full_like(norm.weight, 0.25)) for norm in norms)
    assert all(norm.weight.requires_grad for norm in norms)
    assert all(torch.equal(norm.bias, shift) for norm, shift in zip(norms, shifts, strict=True))


def test_penalty_and_its_gradient_against_a_loop() -> None:
    model = spread(net()).double()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    norms[0].weight.data[1] = 0
    penalty = Slimming(strength=0.3, target=0.5).regulariser(model, torch.optim.SGD(model.parameters(), lr=0.1))
    penalty.strength = 0.2
    term = penalty()
    assert math.isclose(term.item(), 0.2 * sum(abs(s) for norm in norms for s in norm.weight.tolist()))
    term.backward()
    for norm in norms:
        torch.testing.assert_close(norm.weight.grad, 0.2 * norm.weight.detach().sign())
    assert model.stem.weight.grad is None


@pytest.mark.parametrize("count", [0, 1, 17, 59, 60])
def test_mask_against_a_slow_ranking(count: int) -> None:
    model = spread(net())
    before = state(model)
    masked = without_smallest(model, count)
    assert unchanged(masked, masked_by_hand(model, count).state_dict())
    assert unchanged(model, before)


@pytest.mark.parametrize("target", [0.1, 0.5, 0.75])
def test_just_the_asked_share_goes_and_the_function_is_that_of_the_masked_model(target: float) -> None:
    model = spread(net())
    before = state(model)
    cut = slim(model, target=target)
    count = round(target * CHANNELS)
    assert (cut.removed.zero, cut.removed.total) == (count, CHANNELS)
    assert cut.compacted is not None
    assert cut.compacted.model is cut.model
    assert Method().zeros(cut.compacted.original).zero == count
    assert share(cut, model) < 1
    assert cut.model.training
    assert unchanged(model, before)
    assert agree(cut.model, masked_by_hand(model, count))


def test_equal_scales_are_cut_to_the_count_too() -> None:
    method = Slimming(strength=0.0, target=0.25)
    cut = method.cut(method.prepare(net()), EXAMPLE)
    assert cut.compacted is not None
    assert Method().zeros(cut.compacted.original).zero == cut.removed.zero == 15


@pytest.mark.parametrize("wanted", [0.9, 0.5, 0.2])
def test_macs_are_as_asked_and_never_above(wanted: float) -> None:
    torch.manual_seed(0)
    model = spread(PreResNet(8, num_classes=4, width=8, in_channels=1))
    cut = slim(model, macs=wanted)
    reached = share(cut, model)
    assert reached <= wanted
    one_less = ds.compact(masked_by_hand(model, cut.removed.zero - 1), EXAMPLE)
    assert reached >= wanted * (1 - TOLERANCE) or one_less.after.macs / one_less.before.macs > wanted
    assert agree(cut.model, masked_by_hand(model, cut.removed.zero))


def test_all_costs_that_were_asked_for_hold() -> None:
    torch.manual_seed(0)
    model = spread(PreResNet(8, num_classes=4, width=8, in_channels=1))
    whole = measure(model, EXAMPLE, latency=False)
    for asked in ({"params": 0.3}, {"bytes": 20_000}, {"macs": 0.7, "params": 0.4}, {"macs": whole.macs // 2}):
        cost = measure(slim(model, **asked).model, EXAMPLE, latency=False)
        for name, limit in asked.items():
            assert getattr(cost, name) <= (limit if limit > 1 else limit * getattr(whole, name))
    # the harder of two decides
    both, alone = slim(model, macs=0.9, params=0.3), slim(model, params=0.3)
    assert both.removed.zero == alone.removed.zero
    with pytest.raises(ds.SparsityError, match="more than the whole network costs"):
        slim(model, params=10**9)


def test_all_macs_may_stay() -> None:
    model = spread(net())
    assert slim(model, macs=1.0).removed.zero <= 1


def test_death_of_whole_layers_and_blocks_is_survived() -> None:
    model = spread(net())
    # a branch, a first batch norm whose block leaves a map, and all in between
    for norm in (model.stages[0][0].bn2, model.stages[1][0].bn1, model.stages[2][0].bn2):
        norm.weight.data *= 1e-6
    cut = slim(model, target=30 / CHANNELS)
    assert cut.removed.zero == 30
    assert agree(cut.model, masked_by_hand(model, 30))
    deep = spread(net())
    deep.bn.weight.data += 10
    cut = slim(deep, target=44 / CHANNELS)
    assert [name for name, module in cut.model.named_modules() if isinstance(module, nn.Conv2d)] == [
        "stem",
        "stages.1.0.shortcut",
        "stages.2.0.shortcut",
    ]
    assert agree(cut.model, masked_by_hand(deep, 44))


def test_a_network_that_would_ignore_its_input_is_not_returned() -> None:
    model = spread(net())
    with pytest.raises(ds.SparsityError, match=r"60 of 60 channels that target=1 removes.*smaller target"):
        slim(model, target=1.0)
    model.bn.weight.data *= 1e-6
    with pytest.raises(ds.SparsityError, match="no longer depends on its input"):
        slim(model, target=16 / CHANNELS)
    assert slim(model, target=15 / CHANNELS).removed.zero == 15


def test_macs_out_of_reach_tell_how_far_it_goes() -> None:
    with pytest.raises(ds.SparsityError, match=r"macs=1e-06 is out of reach: at \d+\.\d% of the MACs"):
        slim(spread(net()), macs=1e-6)


def test_other_warnings_of_compaction_come_through() -> None:
    model = spread(net())
    model.idle = nn.Linear(2, 2)
    with pytest.warns(ds.SparsityWarning, match="not run in eval mode.*idle"):
        cut = slim(model, target=0.5)
    assert cut.removed.zero == 30


def test_wrapped_models_are_cut_as_the_users_own() -> None:
    model = spread(net())
    assert type(slim(nn.DataParallel(model), target=0.5).model) is PreResNet


def test_trained_cut_and_trained_again() -> None:
    method = Slimming(strength=1e-3, target=0.6)
    model = train(method.prepare(net()), method, steps=60)
    assert accuracy(model) > 0.8
    cut = method.cut(model, EXAMPLE)
    before = accuracy(cut.model)
    assert accuracy(train(cut.model, Method(), steps=30)) > max(before, 0.5)
    assert Method().zeros(cut.model).zero == 0


def test_refuses_mistakes() -> None:
    for wrong in ({"target": 0.5, "macs": 0.5}, {}, {"target": 2.0}):
        with pytest.raises(ds.SparsityError, match="target"):
            Slimming(strength=0.1, **wrong)
    with pytest.raises(ds.SparsityError, match="strength must be"):
        Slimming(strength=-1.0, target=0.5)
    with pytest.raises(ds.SparsityError, match="start must be"):
        Slimming(strength=0.1, target=0.5, start=math.nan)
    method = Slimming(strength=0.1, target=0.5)
    bare = nn.Linear(2, 2)
    for act in (
        lambda: method.prepare(bare),
        lambda: method.regulariser(bare, torch.optim.SGD(bare.parameters(), lr=0.1)),
        lambda: method.cut(bare, torch.zeros(1, 2)),
    ):
        with pytest.raises(ds.SparsityError, match="and Linear has none"):
            act()
    diverged = net()
    diverged.bn.weight.data[3] = math.nan
    with pytest.raises(ds.SparsityError, match="not finite"):
        method.cut(diverged, EXAMPLE)
