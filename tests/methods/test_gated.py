import torch
from torch import nn

import diffsparse as ds
from diffsparse.methods import Gated
from diffsparse.nn import SparseBatchNorm
from tests.methods.tiny import EXAMPLE, agree, net, train


def test_gates_replace_batch_norms_and_the_penalty_is_on_them() -> None:
    method = Gated(strength=0.1, norm=ds.GroupL21(size=4), start=0.25, rgf=0.2)
    model = method.prepare(net())
    gates = [module.gate for module in model.modules() if isinstance(module, SparseBatchNorm)]
    assert len(gates) == 7
    assert all(gate.rgf == 0.2 for gate in gates)
    torch.testing.assert_close(gates[0](), torch.full((4,), 0.25))
    term = method.regulariser(model, torch.optim.SGD(model.parameters(), lr=0.1))()
    # 60 channels are 15 groups of four, each of norm 0.25 * 2
    torch.testing.assert_close(term, torch.tensor(0.1 * 15 * 0.5))


def test_gates_that_a_model_brings_are_its_own() -> None:
    model = ds.sparsify(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)), "1")
    assert Gated(strength=0.1).prepare(model) is model
    assert isinstance(model[2], nn.BatchNorm1d)


def test_training_makes_zeros_that_compaction_removes() -> None:
    method = Gated(strength=0.02)
    model = train(method.prepare(net()), method)
    assert method.zeros(model).zero > 0
    small = method.compacted(model, net(), EXAMPLE)
    assert small.after.macs < small.before.macs
    assert agree(model, small.model)
