import numpy as np
import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.models import DenseNet
from tests.plot.examples import small_net

pytest.importorskip("matplotlib")

IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def gated_densenet() -> nn.Module:
    """Growth 4: inputs of 8, then 12 channels, and so on; every second group of four is dead, but its first channel."""
    torch.manual_seed(0)
    net = DenseNet(7, 3, growth=4, in_channels=1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.view(-1, 4)[1::2, 1:] = 0
    return ds.sparsify(net.eval())


def table(axes: object) -> np.ma.MaskedArray:
    return axes.images[0].get_array()


def test_a_row_per_layer_and_a_column_per_channel() -> None:
    net = gated_densenet()
    channels, groups = ds.plot.connections(net).axes[:2]
    names = [name.removesuffix(".gate") for name, module in net.named_modules() if isinstance(module, ds.SignedGate)]
    assert [label.get_text() for label in channels.get_yticklabels()] == names
    shown = table(channels)
    for row, name in zip(shown, names, strict=True):
        a = net.get_submodule(f"{name}.gate")().detach().abs().numpy()
        assert row[: len(a)].tolist() == pytest.approx(a.tolist())
        # behind the last input of a layer there is nothing
        assert row.mask[len(a) :].all()
    blocks = table(groups)
    assert blocks.shape[1] == shown.shape[1] // 4
    assert blocks[0].compressed().tolist() == [1.0, 0.25]
    assert blocks[1].compressed().tolist() == [1.0, 0.25, 1.0]
    assert "groups of 4 are read" in groups.get_title()


def test_one_view_chosen_gates_and_blocks() -> None:
    net = gated_densenet()
    figure = ds.plot.connections(net, view="groups", only="stages.0.0", group=2)
    assert table(figure.axes[0]).compressed().tolist() == [1.0, 1.0, 0.5, 0.0]
    assert "3 of 4 groups of 2 are read" in figure.axes[0].get_title()


def test_a_single_block_is_not_drawn() -> None:
    gates = nn.ModuleList([ds.SignedGate.from_values([0.5, 0.0, 0.0, 1.0]) for _ in range(2)])
    titles = [axes.get_title() for axes in ds.plot.connections(gates).axes]
    assert [title for title in titles if title] == ["4 of 8 channels are read"]


def test_ordinary_scales_count_too() -> None:
    figure = ds.plot.connections(small_net(), view="channels")
    assert (table(figure.axes[0])[0].compressed() > 0).tolist() == [True, False, False, False]


def test_what_is_left_of_a_model_that_became_small() -> None:
    gated = gated_densenet()
    alive = (table(ds.plot.connections(gated, view="channels").axes[0]) > 0).compressed()
    small = ds.compact(gated, IMAGES)
    assert ((table(ds.plot.connections(small, view="channels").axes[0]) > 0).compressed() == alive).all()


def test_a_budget_leaves_only_its_plan() -> None:
    torch.manual_seed(0)
    net = ds.sparsify(DenseNet(7, 3, growth=4, in_channels=1), start=1.0)
    budget = ds.Budget(net, IMAGES, macs=0.5, steps=6)
    optimizer = torch.optim.SGD(ds.parameter_groups(net), lr=0.05)
    for _ in range(6):
        optimizer.zero_grad()
        (net(IMAGES).square().mean() + budget.penalty()).backward()
        optimizer.step()
        budget.step(optimizer)
    figure = ds.plot.connections(budget, view="channels")
    rows = dict(zip([t.get_text() for t in figure.axes[0].get_yticklabels()], table(figure.axes[0]), strict=True))
    modules = dict(net.named_modules())
    for name, row in rows.items():
        left = modules.get(name)
        assert row.sum() == (left.num_features if isinstance(left, nn.BatchNorm2d) else 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "rows"}, "view must be both, channels or groups, got 'rows'"),
        ({"group": 5}, "are no whole blocks of 5"),
        ({"group": 0}, "group must be a whole number of at least 1"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    with pytest.raises(ds.SparsityError, match=message):
        ds.plot.connections(gated_densenet(), **options)


def test_nothing_to_draw() -> None:
    with pytest.raises(ds.SparsityError, match="neither gates nor batch norms"):
        ds.plot.connections(nn.Linear(2, 2))
    with pytest.raises(ds.SparsityError, match="only chooses gates"):
        ds.plot.connections(small_net(), only="x")
    with pytest.raises(ds.SparsityError, match="give a model, what `compact` returned, or a budget, not int"):
        ds.plot.connections(3)
