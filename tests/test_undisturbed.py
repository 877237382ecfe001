import pytest
import torch
from torch import nn

from diffsparse.undisturbed import undisturbed

CPU = torch.device("cpu")


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("absent", None)

    def forward(self, x):
        self.written += 1
        self.replaced = self.replaced + 1
        return x


def test_each_training_flag_comes_back():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model[1].eval()
    with undisturbed(model, device=CPU):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False, False]


def test_random_state_comes_back():
    state = torch.get_rng_state()
    with undisturbed(nn.Identity(), device=CPU):
        torch.rand(3)
        assert not torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.get_rng_state(), state)


def test_buffers_come_back_as_the_same_tensors():
    model = Counter()
    written, replaced = model.written, model.replaced
    with undisturbed(model, device=CPU):
        model(torch.zeros(1))
        assert model.written.sum() == model.replaced.sum() == 2
    assert model.written is written
    assert model.replaced is replaced
    assert written.sum() == replaced.sum() == 0


def test_all_comes_back_after_an_error():
    model = Counter()
    with pytest.raises(RuntimeError, match="mat1"), undisturbed(model, device=CPU):
        nn.Sequential(model, nn.Linear(2, 2))(torch.zeros(1, 3))
    assert model.training
    assert model.written.sum() == 0
    assert torch.is_grad_enabled()


def test_untouched_buffers_keep_their_version():
    model = nn.BatchNorm1d(2)
    version = model.running_mean._version
    with undisturbed(model, device=CPU):
        model(torch.ones(4, 2))
    assert model.running_mean._version == version


def test_buffers_made_in_inference_mode_are_let_alone():
    model = nn.Module()
    with torch.inference_mode():
        model.register_buffer("mask", torch.ones(2))
    with undisturbed(model, device=CPU):
        pass
    assert model.mask.tolist() == [1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_random_state_of_the_gpu_comes_back():
    state = torch.cuda.get_rng_state()
    with undisturbed(nn.Identity(), device=torch.device("cuda")):
        torch.rand(3, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_attributes_and_collections_come_back():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen, self.last, self.table = [], None, {"deep": [1]}

        def forward(self, x):
            self.seen.append(x)
            self.table["deep"].append(2)
            self.last, self.new = x, x
            return x

    model = Remembers()
    with undisturbed(model, device=CPU):
        model(torch.zeros(1))
        assert model.seen
    assert (model.seen, model.last, model.table) == ([], None, {"deep": [1]})
    assert not hasattr(model, "new")


@pytest.mark.parametrize("hooks", [False, True])
def test_what_hooks_hold_comes_back_if_asked_for(hooks):
    seen = []
    model = nn.Identity()
    model.register_forward_hook(lambda module, args, output: seen.append(output))
    with undisturbed(model, device=CPU, hooks=hooks):
        model(torch.zeros(1))
    assert len(seen) == (0 if hooks else 1)


def test_hooks_that_the_first_run_puts_in_are_taken_out():
    class Prepares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.ready, self.seen = nn.Linear(2, 2), False, []

        def forward(self, x):
            if not self.ready:
                self.layer.register_forward_hook(lambda *_: self.seen.append(1))
                self.ready = True
            return self.layer(x)

    model = Prepares()
    own = model.layer.register_forward_pre_hook(lambda *_: None)
    with undisturbed(model, device=CPU):
        model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    assert model.seen == [1]
    assert own.id in model.layer._forward_pre_hooks
