"""Gated layers in training: the same under DDP as in one process, averaged, and small in place."""

import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import diffsparse as ds
from diffsparse.nn import GatedLayer
from tests.gating.transformers_zoo import answer, built

WORLD, BATCH, STEPS = 2, 3, 4


def make():
    model, example = built("nano-gpt")
    return ds.sparsify(model, example, kinds=("neurons", "heads", "layers")), example


def train(model, wrapped, part):
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
    penalty = ds.Penalty(model, ds.L1(), strength=0.01)
    for step in range(STEPS):
        ids = torch.randint(30, (WORLD * BATCH, 6), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        logits = wrapped(ids[part])
        (torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[part].flatten()) + penalty()).backward()
        optimizer.step()
    return model.state_dict()


def worker(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    model, _ = make()
    state = train(model, DistributedDataParallel(model), slice(rank * BATCH, (rank + 1) * BATCH))
    torch.save(state, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_are_one(tmp_path):
    torch.multiprocessing.spawn(worker, args=(str(tmp_path),), nprocs=WORLD)
    model, _ = make()
    expected = train(model, model, slice(None))
    for rank in range(WORLD):
        state = torch.load(tmp_path / f"{rank}.pt")
        assert all(torch.allclose(state[key], value, atol=1e-10) for key, value in expected.items())


def test_the_average_follows_when_the_model_becomes_small():
    torch.manual_seed(0)
    model, example = make()
    optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.01)
    average, budget = ds.MovingAverage(model, 0.9), ds.Budget(model, example, macs=0.6, steps=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ds.SparsityWarning)
        for _ in range(20):
            loss = model(example).square().mean() + budget.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            if budget.step(optimizer):
                average.follow(budget.small)
    assert not any(isinstance(module, GatedLayer) for module in average.model.modules())
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in average.model.state_dict().items()} == shapes


def test_gates_and_weights_learn():
    model, example = make()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, model, slice(None))
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {*before}
    assert answer(model, example).isfinite().all()
