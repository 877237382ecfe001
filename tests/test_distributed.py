"""Two real processes: gates stay equal under DDP, and synchronised statistics equal one process of twice the batch."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diffsparse import GroupL21, Penalty, SignedGate, SparsityError, parameter_groups, sparsify

WORLD, BATCH, STEPS = 2, 4, 3


def make_net():
    """A small gated conv net in float64 with non-trivial gates, one of them dropped."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3),
        nn.BatchNorm2d(5, momentum=None),
        nn.Flatten(),
        nn.Linear(5 * 4 * 4, 3),
    ).double()
    sparsify(net)
    net[1].gate = SignedGate.from_values(torch.tensor([0.9, -0.5, 0.0, 0.3, 0.7, 0.2], dtype=torch.float64))
    net[1].bias.detach().normal_()
    net[4].bias.detach().normal_()
    return net


def global_batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(WORLD * BATCH, 2, 8, 8, generator=generator, dtype=torch.float64)
    # halves of different mean and spread, so that local statistics are far from global ones
    x[:BATCH] = 3 * x[:BATCH] + 2
    return x, torch.randint(3, (WORLD * BATCH,), generator=generator)


def train(net, wrapped, part):
    """Three SGD steps on `part` of each global batch; the loss is a mean over the batch, as DDP expects."""
    penalty = Penalty(net, GroupL21(size=2), strength=0.01)
    optimizer = torch.optim.SGD(parameter_groups(net), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x, target = global_batch(step)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(wrapped(x[part]), target[part]) + penalty()).backward()
        optimizer.step()
    return net.state_dict()


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    part = slice(rank * BATCH, (rank + 1) * BATCH)
    local = make_net()
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(make_net())
    states = {
        "local": train(local, DistributedDataParallel(local, broadcast_buffers=False), part),
        "synchronised": train(synchronised, DistributedDataParallel(synchronised), part),
    }
    torch.save(states, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(worker, args=(str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]


def gates(state):
    return {key: value for key, value in state.items() if ".gate." in key}


def test_gates_are_identical_on_both_ranks(ranks):
    first, second = (rank["local"] for rank in ranks)
    start = gates(make_net().state_dict())
    assert len(start) == 4
    for key, value in gates(first).items():
        assert torch.equal(value, second[key]), key
        assert not torch.equal(value, start[key]), key
    # the data did differ
    assert not torch.allclose(first["1.statistics.running_mean"], second["1.statistics.running_mean"])


@pytest.mark.parametrize("rank", range(WORLD))
def test_synchronised_ranks_equal_one_process_of_twice_the_batch(ranks, rank):
    net = make_net()
    expected = train(net, net, slice(None))
    result = ranks[rank]["synchronised"]
    assert result.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(result[key], value, rtol=1e-9, atol=1e-9, msg=lambda m, key=key: f"{key}: {m}")
    # without synchronisation the result is another one
    assert not torch.allclose(ranks[rank]["local"]["0.weight"], expected["0.weight"], rtol=1e-3)


@pytest.fixture
def alone():
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_sparsify_refuses_a_wrapped_model():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    for model in (DistributedDataParallel(net), nn.Sequential(DistributedDataParallel(net))):
        with pytest.raises(SparsityError, match="sparsify before wrapping"):
            sparsify(model)
    assert type(net[1]) is nn.BatchNorm1d


class Skipping(nn.Module):
    """Its second block is not part of the forward pass."""

    def __init__(self):
        super().__init__()
        self.used, self.skipped = (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2))

    def forward(self, x):
        return self.used(x)


def skipped_step(**options):
    net = sparsify(Skipping(), start=0.5)
    for parameter in (*net.skipped[0].parameters(), net.skipped[1].bias):
        parameter.requires_grad_(False)
    wrapped, penalty = DistributedDataParallel(net, **options), Penalty(net, strength=0.1)
    for _ in range(2):
        net.zero_grad()
        (wrapped(torch.randn(4, 2)).square().mean() + penalty()).backward()
    assert net.skipped[1].gate.alpha.grad.any()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=str)
def test_a_penalty_on_a_skipped_block_is_fine(options):
    skipped_step(**options)


@pytest.mark.usefixtures("alone")
def test_a_penalty_on_a_skipped_block_does_not_go_with_finding_unused_parameters():
    with pytest.raises(RuntimeError, match="mark a variable ready only once"):
        skipped_step(find_unused_parameters=True)
