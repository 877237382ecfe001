"""The compact network computes what the gated one does, whatever has died."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise
from diffsparse.errors import SparsityError, SparsityWarning
from diffsparse.wiring import Differentiable, TopK, WiredStage, compact_wiring, compaction, table
from diffsparse.wiring.bags import DenseMix, SparseMix
from diffsparse.wiring.mobilenet import WiredMobileNet
from diffsparse.wiring.stage import OrdinaryStage
from diffsparse.wiring.table import SparseFront, SparseNodes, TableStage
from tests.wiring.nets import drop, shifted, tiny

LAYOUT = ((4, 6, 1, 2), (6, 8, 2, 3))


@pytest.fixture(params=["sparse", "dense", "ordinary"])
def winner(request, monkeypatch) -> str:
    """Which candidate the clock is made to prefer."""

    def times(modules: Sequence[nn.Module], x: Tensor) -> list[float]:
        for module in modules:
            module(x)
        if request.param == "ordinary":
            return [1.0, *[2.0] * (len(modules) - 1)]
        liked = SparseMix if request.param == "sparse" else DenseMix
        return [1.0 if isinstance(module, liked | TableStage) else 2.0 for module in modules]

    monkeypatch.setattr(compaction, "_times", times)
    return request.param


def same(net: nn.Module, small: nn.Module, sizes: Sequence[int] = (8, 9, 5), atol: float = 1e-5) -> None:
    for size in sizes:
        x = torch.randn(3, 2, size, size)
        assert torch.allclose(small(x), net(x), atol=atol)


@pytest.mark.parametrize("rate", [0.3, 0.8, 0.95])
def test_random_edges(rate, winner) -> None:
    net = tiny(drop(rate, seed=1), *LAYOUT)
    before = copy.deepcopy(net.state_dict())
    small = compact_wiring(net, torch.randn(2, 2, 8, 8))
    same(net, small.model)
    assert small.max_difference < 1e-5
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    kinds = {type(mix) for mix in small.model.modules() if isinstance(mix, SparseMix | DenseMix)}
    expected = {"sparse": {SparseMix}, "dense": {DenseMix}, "ordinary": set()}[winner]
    assert kinds <= expected
    if rate < 0.9:
        assert kinds == expected
        assert len(small.choices) == (0 if winner == "ordinary" else 5)
        assert all(choice.sparse == (winner == "sparse") for choice in small.choices)


def no_input(stages: list[list[Tensor]]) -> None:
    """Some interior nodes and an output node of the first stage get nothing, yet send."""
    stages[0][0][[1, 3]] = 0.0
    stages[0][1][2] = 0.0


def no_output(stages: list[list[Tensor]]) -> None:
    """An input node and interior nodes that nobody reads."""
    for matrix in stages[0]:
        matrix[:, 1] = 0.0
    stages[0][1][:, 4:7] = 0.0


def dead_group(stages: list[list[Tensor]]) -> None:
    """A whole interior group of the second stage is read by nobody."""
    for matrix in stages[1][1:]:
        matrix[:, 6:14] = 0.0


def constant_group(stages: list[list[Tensor]]) -> None:
    """A whole interior group gets nothing, and sends constant maps."""
    stages[1][0].zero_()


@pytest.mark.parametrize("edit", [no_input, no_output, dead_group, constant_group])
def test_odd_deaths(edit, winner) -> None:
    net = tiny(edit, *LAYOUT)
    small = compact_wiring(net, torch.randn(2, 2, 8, 8))
    same(net, small.model, (8, 9, 5))
    if edit is no_output:
        assert small.model.stem.out_channels == 3
        assert len(small.model.stages[0].nodes[1].filter.weight) == 3


def test_a_constant_that_varies_at_the_border_is_kept() -> None:
    """A stage on zeros is all shift: its maps differ between border and middle, and none is a plain number."""
    net = tiny(no_input, *LAYOUT)
    node = net.stages[0].nodes[1]
    alone = node(torch.zeros(1, 6, 8, 8))[0, 1]
    assert alone[0, 0] != alone[4, 4]
    same(net, compact_wiring(net, torch.randn(2, 2, 8, 8)).model)


def test_a_dead_network() -> None:
    def edit(stages: list[list[Tensor]]) -> None:
        stages[0][1].zero_()

    net = tiny(edit, *LAYOUT)
    with pytest.warns(SparsityWarning, match="no longer depends on its input"):
        small = compact_wiring(net, torch.randn(2, 2, 8, 8))
    same(net, small.model, (8,))


@pytest.mark.parametrize("rule", [Differentiable(), TopK(density=0.3)], ids=repr)
def test_gated_network_after_some_training(rule, winner) -> None:
    torch.manual_seed(0)
    net = WiredMobileNet(4, in_channels=2, width=0.125, small=True, edges=rule)
    if isinstance(rule, Differentiable):
        for module in net.modules():
            if isinstance(module, ds.SignedGate):
                share = torch.tensor(1.2 / module.group_size)
                module.beta.data.fill_(torch.logit(share.clamp(max=0.3)).item())
    net.train()(torch.randn(16, 2, 8, 8))
    shifted(net, seed=1)
    small = compact_wiring(net, torch.randn(4, 2, 8, 8))
    same(net, small.model)
    assert not any(isinstance(module, WiredStage | ds.SignedGate) for module in small.model.modules())
    if winner != "ordinary":
        live = sum(int((m != 0).sum()) for stage in net.stages for m in stage.edges())
        assert sum(choice.edges for choice in small.choices) <= live


def test_gated_channels_and_gated_edges_together(winner) -> None:
    torch.manual_seed(0)
    net = shifted(WiredMobileNet(4, in_channels=2, width=0.125, small=True, edges=TopK(density=0.6)))
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.weight.data[::3] = 0.0
        norm.bias.data[::3] = 0.0
    net = ds.sparsify(net)
    small = compact_wiring(net, torch.randn(4, 2, 8, 8))
    same(net, small.model)
    assert len(small.model.stages[1].nodes[1].filter.weight) <= 10 < 16


def test_a_stage_alone_and_double_precision() -> None:
    torch.manual_seed(0)
    stage = shifted(WiredStage(3, 4, groups=2)).double()
    small = compact_wiring(stage, torch.randn(2, 3, 6, 6).double())
    x = torch.randn(1, 3, 6, 6).double()
    assert torch.allclose(small.model(x), stage(x), atol=1e-12)


class OneByOne(nn.Module):
    """Two stages in a sequence that is not called; what they give must be as the code in between expects it."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(OrderedDict(first=WiredStage(2, 6, groups=2), second=WiredStage(6, 4)))

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x.view(x.shape[0], -1))
        return torch.cat(outputs, 1)


def test_output_of_stages_lies_as_usual_where_others_see_it(winner) -> None:
    torch.manual_seed(0)
    net = shifted(OneByOne())
    small = compact_wiring(net, torch.randn(1, 2, 8, 8))
    same(net, small.model)


def test_stages_in_a_sequence_pass_their_maps_on_as_they_are(winner) -> None:
    torch.manual_seed(0)
    net = shifted(nn.Sequential(OrderedDict(first=WiredStage(2, 6, groups=2), second=WiredStage(6, 4))))
    small = compact_wiring(net, {"input": torch.randn(3, 2, 8, 8)})
    same(net, small.model)
    if winner != "ordinary":
        assert [stage.contiguous for stage in small.model] == [False, True]


def test_other_stages_pass_their_maps_on_as_well(winner) -> None:
    torch.manual_seed(0)
    net = shifted(Around(lambda net, x: net.stages[1](net.again[0](x))))
    small = compact_wiring(net, torch.randn(3, 2, 8, 8))
    same(net, small.model)
    if winner != "ordinary":
        assert [stage.contiguous for stage in small.model.stages] == [False, True]


class Around(nn.Module):
    """Calls a sequence of two stages, and does more with it."""

    def __init__(self, more: Callable[["Around", Tensor], Tensor]) -> None:
        super().__init__()
        self.stages = nn.Sequential(WiredStage(2, 4, groups=2), WiredStage(4, 4))
        self.again = nn.ModuleList([self.stages[0]])
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self, x)


@pytest.mark.parametrize(
    "more",
    [
        lambda net, x: net.stages(x) + net.stages[0](x).view(x.shape[0], 4, *x.shape[2:]),
        lambda net, x: net.stages(x.sub_(0.5).mul_(2)),
        lambda net, x: net.stages(x) + torch.randn(()),
        lambda net, x: net.stages[1](net.again[0](x)) + x[:, :1],
        lambda net, x: net.stages(x).mean((2, 3)) + net.stages(torch.nn.functional.avg_pool2d(x, 2)).mean((2, 3)),
    ],
    ids=["member called as well", "writes to its input", "draws numbers", "two names", "two sizes"],
)
def test_networks_around_stages(more, winner) -> None:
    torch.manual_seed(0)
    net = shifted(Around(more))
    example = torch.randn(1, 2, 8, 8)
    given = example.clone()
    small = compact_wiring(net, example)
    assert torch.equal(example, given)
    kinds = {type(small.model.stages[0]), type(small.model.again[0])}
    assert kinds == ({OrdinaryStage} if winner == "ordinary" else {TableStage})
    for size in (8, 9, 5):
        x = torch.randn(3, 2, size, size)
        torch.manual_seed(1)
        expected = net(x.clone())
        torch.manual_seed(1)
        assert torch.allclose(small.model(x.clone()), expected, atol=1e-5)


def per_batch(stage: WiredStage) -> None:
    stage.nodes[1].norm = nn.BatchNorm2d(6, track_running_stats=False)


def per_image(stage: WiredStage) -> None:
    stage.nodes[1].norm = nn.InstanceNorm2d(6)


def hooked(stage: WiredStage) -> None:
    stage.nodes[1].register_forward_hook(lambda module, args, output: output * 2)


@pytest.mark.parametrize("edit", [per_batch, per_image, hooked])
def test_stages_with_other_parts_stay_ordinary(edit, winner) -> None:
    torch.manual_seed(0)
    stage = shifted(WiredStage(2, 6, groups=2))
    edit(stage)
    small = compact_wiring(stage.eval(), torch.randn(16, 2, 6, 6))
    assert isinstance(small.model, OrdinaryStage)
    x = torch.randn(70, 2, 6, 6)
    assert torch.allclose(small.model(x), stage(x), atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [{"bias": True}, {"padding_mode": "circular"}, {"groups": 1}, {"padding": "same"}, {"dilation": 2, "padding": 2}],
    ids=str,
)
def test_other_filters_run_as_they_are(change, winner) -> None:
    torch.manual_seed(0)
    stage = shifted(WiredStage(2, 6, groups=2))
    usual = {"padding": 1, "groups": 6, "bias": False}
    stage.nodes[1].filter = nn.Conv2d(6, 6, 3, **(usual | change))
    same(stage, compact_wiring(stage, torch.randn(2, 2, 6, 6)).model)


class WithStem(nn.Module):
    """A convolution in front of a stage, and what else is done with it."""

    def __init__(self, more: Callable[[nn.Module, Tensor, Tensor], Tensor | float]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.stage = WiredStage(4, 6, groups=2)
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.stage(y) + self.more(self, x, y)


@pytest.mark.parametrize(
    ("more", "alone"),
    [
        (lambda net, x, y: 0.0, True),
        (lambda net, x, y: y.mean(), False),
        (lambda net, x, y: y.view(-1).mean(), False),
        (lambda net, x, y: net.stem(x).mean(), False),
    ],
    ids=["read once", "read twice", "viewed", "called twice"],
)
@pytest.mark.parametrize("images", [1, 3])
def test_a_convolution_in_front_of_a_table(monkeypatch, more, alone, images) -> None:
    def times(modules: Sequence[nn.Module], x: Tensor) -> list[float]:
        for module in modules:
            module(x)
        return list(range(len(modules), 0, -1))

    monkeypatch.setattr(compaction, "_times", times)
    torch.manual_seed(0)
    net = shifted(WithStem(more))
    example = torch.randn(images, 2, 6, 6)
    small = compact_wiring(net, example).model
    assert isinstance(small.stage, TableStage)
    assert isinstance(small.stem, SparseFront) == alone
    same(net, small)
    monkeypatch.setattr(table, "LARGEST_LAYOUT", 0)
    assert isinstance(compact_wiring(net, example).model.stem, nn.Conv2d)


def test_small_batches_of_large_maps_do_without_layouts(monkeypatch) -> None:
    monkeypatch.setattr(compaction, "_times", lambda modules, x: [2.0, *[1.0] * (len(modules) - 1)])
    monkeypatch.setattr(compaction, "PIECES", (64,))
    monkeypatch.setattr(table, "LARGEST_LAYOUT", 6 * 8 * 8 * 72)
    stage = shifted(WiredStage(2, 4, groups=2))
    for images, size, sparse in ((1, 8, True), (1, 9, False), (18, 9, True)):
        small = compact_wiring(stage, torch.randn(images, 2, size, size)).model
        assert all(isinstance(group, SparseNodes) == sparse for group in small.nodes)


def test_what_is_compact_already(winner, tmp_path: Path) -> None:
    net = tiny(drop(0.7, seed=2), *LAYOUT)
    ds.save(ds.compact(net, torch.randn(2, 2, 8, 8)), tmp_path / "net.safetensors")
    loaded = ds.load(tmp_path / "net.safetensors", tiny(drop(0.0), *LAYOUT, seed=5)).eval()
    same(net, compact_wiring(loaded, torch.randn(2, 2, 8, 8)).model)


def test_products_are_measured() -> None:
    torch.manual_seed(0)
    stage = shifted(WiredStage(512, 512))
    values = torch.randn(512, 512) * (torch.rand(512, 512) < 0.01)
    stage.edges.gates[0] = ds.SignedGate.from_values(values)
    small = compact_wiring(stage, torch.randn(16, 512, 8, 8))
    assert isinstance(small.model, TableStage)
    (choice,) = small.choices
    assert choice.edges == int((values != 0).sum())
    assert 0 < choice.sparse_seconds < choice.dense_seconds
    assert f"{choice.edges} edges" in str(small)


@pytest.mark.parametrize("winner", ["sparse"], indirect=True)
def test_a_wrong_product_is_refused(monkeypatch, winner) -> None:
    monkeypatch.setattr(SparseMix, "_sums", lambda self, rows: rows.new_ones(self.outputs, rows.shape[1]))
    with pytest.raises(SparsityError, match="outputs differ by"):
        compact_wiring(tiny(drop(0.3), *LAYOUT), torch.randn(2, 2, 8, 8))


def test_a_network_without_wired_stages() -> None:
    with pytest.raises(SparsityError, match="Sequential has no WiredStage"):
        compact_wiring(nn.Sequential(nn.Conv2d(2, 2, 1)), torch.randn(1, 2, 4, 4))
    with pytest.raises(SparsityError, match="does not run on the example"):
        compact_wiring(tiny(drop(0.3), *LAYOUT), torch.randn(2, 5, 8, 8))


def test_ordinary_stages_are_a_copy() -> None:
    net = tiny(drop(0.5), *LAYOUT)
    plain = materialise(net)
    assert [type(stage) for stage in plain.stages] == [OrdinaryStage, OrdinaryStage]
    assert [type(stage) for stage in net.stages] == [WiredStage, WiredStage]
    same(net, plain)
    plain.stages[0].nodes[0].filter.weight.data.zero_()
    assert net.stages[0].nodes[0].filter.weight.any()


def test_the_compact_network_goes_to_a_file_and_back(tmp_path: Path) -> None:
    net = tiny(drop(0.7, seed=2), *LAYOUT)
    small = compact_wiring(net, torch.randn(2, 2, 8, 8))
    ds.save(small.compacted, tmp_path / "net.safetensors")
    fresh = materialise(tiny(drop(0.0), *LAYOUT, seed=5))
    same(net, ds.load(tmp_path / "net.safetensors", fresh).eval())
