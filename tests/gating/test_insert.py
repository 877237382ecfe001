"""`sparsify` on whole models: the function, sharing, selection, and mistakes that leave the model alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from diffsparse import SparseBatchNorm1d, SparseBatchNorm2d, SparsityError, SparsityWarning, sparsify
from diffsparse.nn import SparseBatchNorm
from diffsparse.nn.batchnorm import SyncStatistics


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)) for _ in range(2)
        )
        self.head = nn.ModuleDict({"norm": nn.BatchNorm1d(6), "fc": nn.Linear(6, 4)})

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head["fc"](self.head["norm"](x.mean((2, 3))))


NAMES = ["stem.1", "blocks.0.1", "blocks.1.1", "head.norm"]


def trained_net():
    """A few steps, so that scales and statistics are not trivial; some scales turned negative."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        x = torch.randn(16, 3, 5, 5) + 0.3
        nn.functional.cross_entropy(net(x), torch.randint(4, (16,))).backward()
        optimizer.step()
    for name in NAMES:
        net.get_submodule(name).weight.detach()[::2].neg_()
    return net


def sparse_names(model):
    return [name for name, module in model.named_modules() if isinstance(module, SparseBatchNorm)]


def types(model):
    return [(name, type(module), id(module)) for name, module in model.named_modules()]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_stay_the_same(train, dtype):
    net = trained_net().to(dtype).train(train)
    reference, x = copy.deepcopy(net), torch.randn(8, 3, 5, 5, dtype=dtype)
    assert sparsify(net) is net
    assert sparse_names(net) == NAMES
    expected = reference(x)
    assert ((net(x) - expected).norm() / expected.norm()).item() < 1e-5
    expected = reference.eval()(x)
    assert ((net.eval()(x) - expected).norm() / expected.norm()).item() < 1e-5


def test_trains_on_with_any_optimiser():
    net = sparsify(trained_net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    before = net.stem[1].gate.alpha.detach().clone()
    net(torch.randn(8, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(net.stem[1].gate.alpha, before)


def test_shared_modules_stay_shared():
    shared, container = nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm1d(3))
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": container, "d": container})
    sparsify(model)
    assert isinstance(model["a"], SparseBatchNorm1d)
    assert model["a"] is model["b"][0]
    assert model["c"][0] is model["d"][0]
    assert sparse_names(model) == ["a", "c.0"]


def test_a_batch_norm_itself_comes_back_as_a_new_module():
    norm = nn.BatchNorm2d(3)
    layer = sparsify(norm)
    assert isinstance(layer, SparseBatchNorm2d)
    assert isinstance(norm, nn.BatchNorm2d)


def test_training_flags_stay_mixed():
    net = Net().train()
    net.blocks[0].eval()
    sparsify(net)
    assert [net.get_submodule(name).training for name in NAMES] == [True, False, True, True]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("blocks.*", NAMES[1:3]),
        ("stem", NAMES[:1]),
        (nn.BatchNorm1d, NAMES[3:]),
        (lambda name, module: name.endswith(".1") and getattr(module, "num_features", 0) == 6, NAMES[:3]),
        (["stem", nn.BatchNorm1d], [NAMES[0], NAMES[3]]),
    ],
    ids=["pattern", "container", "type", "predicate", "sequence"],
)
def test_only_chooses(only, expected):
    assert sparse_names(sparsify(Net(), only=only)) == expected


def test_the_rest_can_follow_later():
    net = sparsify(Net(), only="stem")
    assert sparse_names(sparsify(net)) == NAMES


def test_start_and_rgf_reach_every_gate():
    net = sparsify(trained_net(), start=0.5, rgf=0.1)
    for name in NAMES:
        layer = net.get_submodule(name)
        assert layer.gate().tolist() == pytest.approx([0.5] * 6)
        assert layer.gate.rgf == 0.1
        assert not layer.bias.any()


def test_synchronised_batch_norms_are_replaced():
    net = sparsify(nn.SyncBatchNorm.convert_sync_batchnorm(trained_net()))
    assert sparse_names(net) == NAMES
    assert all(isinstance(net.get_submodule(name).statistics, SyncStatistics) for name in NAMES)
    x = torch.randn(8, 3, 5, 5)
    torch.testing.assert_close(net.eval()(x), trained_net().eval()(x), rtol=1e-4, atol=1e-5)


class Doubled(nn.BatchNorm1d):
    def forward(self, input):
        return 2 * super().forward(input)


class Renamed(nn.BatchNorm1d):
    """No forward of its own."""


def test_a_batch_norm_with_its_own_forward_is_left_alone():
    model = nn.Sequential(Doubled(3), nn.BatchNorm1d(3), Renamed(3))
    with pytest.warns(SparsityWarning, match="left alone, being batch norms with a forward pass.*: 0$"):
        sparsify(model)
    assert type(model[0]) is Doubled
    assert sparse_names(model) == ["1", "2"]


class Extra(nn.BatchNorm1d):
    def __init__(self, features):
        super().__init__(features)
        self.temperature = nn.Parameter(torch.ones(()))


class Counted(nn.BatchNorm1d):
    def __init__(self, features):
        super().__init__(features)
        self.register_buffer("calls", torch.zeros(()))


class AnyShape(nn.BatchNorm1d):
    def _check_input_dim(self, input):
        pass


def pruned(features):
    return l1_unstructured(nn.BatchNorm1d(features), "weight", amount=1)


@pytest.mark.parametrize("make", [Doubled, Extra, Counted, AnyShape, pruned])
def test_what_does_more_than_a_batch_norm_is_left_alone(make):
    special = make(3)
    model = nn.Sequential(nn.BatchNorm1d(3), special)
    with pytest.warns(SparsityWarning, match="left alone.*: 1$"):
        sparsify(model)
    assert model[1] is special
    assert sparse_names(model) == ["0"]


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_a_lazy_batch_norm_that_has_its_size_is_replaced():
    model = nn.Sequential(nn.LazyBatchNorm1d())
    model(torch.randn(4, 3))
    assert isinstance(sparsify(model)[0], SparseBatchNorm1d)


def test_refuses_what_is_no_module():
    with pytest.raises(SparsityError, match=r"model must be a torch\.nn\.Module, got 'x'"):
        sparsify("x")


def test_a_function_is_asked_about_batch_norms_alone():
    asked = []
    net = sparsify(sparsify(Net(), only="stem"), only=lambda name, norm: asked.append(name) or norm.weight is not None)
    assert asked == NAMES[1:]
    assert sparse_names(net) == NAMES


def test_a_function_does_not_choose_what_is_inside():
    with pytest.raises(SparsityError, match="chooses no batch norm"):
        sparsify(Net(), only=lambda name, module: name == "blocks")


@pytest.mark.parametrize("case", ["lost", "steep", "own"])
def test_warnings_point_at_the_caller(case):
    model = nn.Sequential(nn.BatchNorm1d(3), Doubled(3) if case == "own" else nn.Identity())
    model[0].weight.detach()[1] = 0.0 if case == "lost" else 1e-9 if case == "steep" else 1.0
    model[0].bias.detach()[1] = 0.3
    with pytest.warns(SparsityWarning) as caught:
        sparsify(model)
    assert [warning.filename for warning in caught] == [__file__]


def spoilt(norm):
    norm.weight.detach()[0] = float("nan")
    return norm


def wrong_models():
    lazy = nn.Sequential(nn.BatchNorm2d(3), nn.LazyBatchNorm2d())
    nan = nn.Sequential(nn.BatchNorm2d(3), spoilt(nn.BatchNorm2d(3)))
    return {
        "lazy": (lazy, {}, "'1' is a lazy batch norm without a size yet"),
        "nan": (nan, {}, "weight of '1' must be finite numbers, got nan"),
        "start": (nn.Sequential(nn.BatchNorm2d(3)), {"start": float("inf")}, "start must be a finite number, got inf"),
        "no number": (nn.Sequential(nn.BatchNorm2d(3)), {"start": "0.5"}, "start must be a finite number, got '0.5'"),
        "zero": (nn.Sequential(nn.BatchNorm2d(3)), {"start": 0}, "neither zero, where it gets no gradient.*got 0"),
        "rgf": (nn.Sequential(nn.BatchNorm2d(3)), {"rgf": -1.0}, "rgf must be"),
        "nothing": (nn.Sequential(nn.Linear(2, 2)), {}, "nothing to gate in Sequential: looked for BatchNorm1d"),
        "typo": (Net(), {"only": "blok*"}, r"the selection 'blok\*' chooses no batch norm to gate of Net"),
        "half a typo": (Net(), {"only": ["stem", "blok*"]}, r"the selection 'blok\*' chooses no batch norm"),
        "empty name": (Net(), {"only": ""}, "a selection is"),
        "empty": (Net(), {"only": []}, r"the selection \[\] is empty"),
        "own": (nn.Sequential(Doubled(3)), {}, "nothing to gate in Sequential: batch norms with a forward.*: 0$"),
        "bare": (spoilt(nn.BatchNorm2d(3)), {}, "weight of 'BatchNorm2d' must be finite numbers, got nan"),
        "selection": (Net(), {"only": 3}, "a selection is"),
        "twice": (sparsify(Net()), {}, r"nothing to gate.*4 layer\(s\) have gates already"),
    }


@pytest.mark.parametrize("case", wrong_models())
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_mistakes_are_named_and_leave_the_model_as_it_was(case):
    model, arguments, message = wrong_models()[case]
    before = types(model)
    with pytest.raises(SparsityError, match=message):
        sparsify(model, **arguments)
    assert types(model) == before
