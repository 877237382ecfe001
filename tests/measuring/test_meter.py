import copy
import json

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.measuring import Comparison, Measurement, measure
from diffsparse.models import PreResNet

X = torch.zeros(1, 3, 32, 32)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

    def forward(self, x):
        return self.second(self.first(x)) * self.mask


@pytest.mark.parametrize(("classes", "params", "macs"), [(10, 1_703_258, 247_646_720), (100, 1_726_388, 247_669_760)])
def test_resnet_164_matches_the_reference(classes, params, macs):
    with torch.device("meta"):
        found = measure(PreResNet(164, classes), torch.zeros(1, 3, 32, 32), latency=False)
    assert (found.params, found.macs, found.flops) == (params, macs, 2 * macs)
    # 12,112 channels of running mean and variance, 163 counters of 8 bytes.
    assert found.buffers == 2 * 12_112 + 163
    assert found.bytes == 4 * (params + 2 * 12_112) + 8 * 163


def test_meta_and_cpu_agree():
    with torch.device("meta"):
        meta = measure(PreResNet(20), torch.zeros(1, 3, 32, 32), latency=False)
    real = measure(PreResNet(20), X, latency=False)
    assert real.macs_by_module == meta.macs_by_module
    assert real.peak_activation_bytes == meta.peak_activation_bytes
    assert real.elementwise_flops == meta.elementwise_flops


def test_figures_are_for_the_whole_batch():
    one, four = (measure(PreResNet(8), X.expand(n, -1, -1, -1), latency=False) for n in (1, 4))
    assert four.macs == 4 * one.macs
    assert four.peak_activation_bytes == 4 * one.peak_activation_bytes
    assert four.params == one.params
    assert "float32[4, 3, 32, 32]" in str(four)


def test_shared_parameters_count_once_and_their_work_twice():
    found = measure(Tied(), torch.zeros(1, 4), latency=False)
    assert (found.params, found.buffers, found.bytes) == (20, 4, 84)
    assert found.macs_by_module == {"first": 16, "second": 16}


def test_gates_are_parameters():
    model = PreResNet(8)
    before = measure(model, X, latency=False).params
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert measure(ds.sparsify(model), X, latency=False).params == before + norms


def test_sparse_buffers_are_as_large_as_their_parts():
    model = nn.Identity()
    model.register_buffer("adjacency", torch.eye(100).to_sparse().coalesce())
    assert measure(model, X, latency=False).bytes == 100 * (4 + 16)


def test_latency_is_taken():
    found = measure(nn.Linear(4, 4), torch.zeros(1, 4), seconds=0, min_runs=7)
    assert isinstance(found, Measurement)
    assert found.latency.runs == 7
    assert 0 < found.latency.lower_quartile <= found.latency.median <= found.latency.upper_quartile
    assert (found.device, found.threads) == ("cpu", torch.get_num_threads())


def test_two_models_are_called_in_turns():
    log = []

    class Named(nn.Linear):
        def forward(self, x):
            log.append(self.out_features)
            return super().forward(x)

    found = measure(Named(4, 1), torch.zeros(1, 4), Named(4, 2), seconds=0, warmup=0, min_runs=2)
    assert isinstance(found, Comparison)
    assert log == [1, 2, 1, 2, 2, 1]  # counted, then timed forwards and backwards
    assert found.ratios["macs"] == 2
    assert found.speedup > 0
    json.dumps(found.as_dict())


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    model[1].eval()
    model[0].weight.grad = torch.ones(4, 4)
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    measure(model, torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), seconds=0)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_compiled_model_counts_as_its_source():
    model = nn.Sequential(nn.Linear(4, 4))
    found = measure(torch.compile(model, backend="eager"), torch.zeros(1, 4), seconds=0)
    assert (found.name, found.macs_by_module) == ("Sequential", {"0": 16})
    assert found.latency is not None


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (torch.relu, X, "model must be a torch.nn.Module, got <built-in"),
        (None, X, "model must be a torch.nn.Module, got None"),
        (nn.Linear(4, 1), [X], "got list"),
        (nn.LazyLinear(4), torch.zeros(1, 4), "weight has no shape yet"),
        (nn.Linear(4, 1), torch.zeros(2, 3), r"float32\[2, 3\]"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_wrong_arguments(model, inputs, message):
    with pytest.raises(ds.SparsityError, match=message):
        measure(model, inputs, latency=False)


def test_a_wrong_second_model_is_named():
    with pytest.raises(ds.SparsityError, match="Conv2d does not run"):
        measure(nn.Identity(), X, nn.Conv2d(4, 1, 1), latency=False)
    with pytest.raises(ds.SparsityError, match=r"other must be a torch.nn.Module, got 3"):
        measure(nn.Identity(), X, 3, latency=False)


@pytest.mark.parametrize("wrong", [{"seconds": "a"}, {"warmup": 1.5}, {"min_runs": None}])
def test_wrong_numbers_are_named(wrong):
    with pytest.raises(ds.SparsityError, match=f"{next(iter(wrong))} must be a"):
        measure(nn.Identity(), X, **wrong)


def test_the_result_of_compact_is_measured_as_its_model():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()
    model[1].weight.data[:6].zero_()
    small = ds.compact(model, torch.randn(2, 4))
    assert measure(small, torch.randn(2, 4), latency=False) == measure(small.model, torch.randn(2, 4), latency=False)
    assert measure(model, torch.randn(2, 4), small, latency=False).ratios["macs"] == 0.25
