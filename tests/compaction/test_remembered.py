"""Constants that are made once: always what a new one would be, and never in the way of anybody."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.adaptors import Constant
from diffsparse.compaction.remembered import LARGEST, Remembered
from diffsparse.compaction.stretch import ConstantMap


class Block(nn.Module):
    """A branch that is constant, with code of the given kind behind it.

    Args:
        behind: what is done with the branch and the input.
    """

    def __init__(self, behind: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.last, self.head = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 2, 1)
        self.behind = behind

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.behind(self.last(F.relu(self.norm(self.first(x)))), x))
        return out


def add_in_place(branch: Tensor, x: Tensor) -> Tensor:
    branch += x
    return branch


def write_to_a_view(branch: Tensor, x: Tensor) -> Tensor:
    branch.flatten(2).mul_(2)
    return branch + x


def relu_in_place(branch: Tensor, x: Tensor) -> Tensor:
    return F.relu(F.dropout(branch, training=False), inplace=True) + x


BEHIND = {
    "add": (torch.add, True),
    "add in place": (add_in_place, False),
    "a view": (write_to_a_view, False),
    "relu in place": (relu_in_place, False),
    "second operand": (lambda branch, x: x.clone().add_(branch), True),
}


def dead(behind: Callable[[Tensor, Tensor], Tensor]) -> Block:
    torch.manual_seed(0)
    model = Block(behind).eval()
    model.norm.weight.data.zero_()
    model.norm.bias.data.normal_()
    return model


@pytest.mark.parametrize(("behind", "read_only"), BEHIND.values(), ids=BEHIND)
def test_every_pass_gives_the_same_whatever_the_code_does_with_it(
    behind: Callable[[Tensor, Tensor], Tensor], read_only: bool
) -> None:
    model = dead(behind)
    small = ds.compact(model, torch.randn(2, 3, 6, 6))
    assert small.plan.layers["last"].read_only is read_only
    with torch.no_grad():
        for batch, size in [(1, 6), (1, 6), (3, 7), (3, 7), (1, 6), (2, 6)]:
            x = torch.randn(batch, 3, size, size)
            for _ in range(2):
                torch.testing.assert_close(small.model(x.clone()), model(x.clone()))


def test_what_the_model_returns_is_always_new() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = dead(torch.add)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            branch = self.block.last(F.relu(self.block.norm(self.block.first(x))))
            return branch[:, :2], self.block.head(x + branch)

    model = Two().eval()
    x = torch.randn(1, 3, 5, 5)
    with pytest.warns(ds.SparsityWarning, match="no longer depends on the input"):
        small = ds.compact(model, x).model
    assert isinstance(small.block.last, ConstantMap)
    one, other = small(x)[0], small(x)[0]
    one.add_(1)
    torch.testing.assert_close(other, model(x)[0])


def constants() -> list[Constant | ConstantMap]:
    return [Constant(3, -3, read_only=True), ConstantMap([1, 3, 1, 1], [None] * 4, read_only=True)]


@pytest.mark.parametrize("constant", constants(), ids=["one number", "map"])
def test_it_is_made_again_if_anything_changes(constant: Constant | ConstantMap) -> None:
    x = torch.zeros(1, 3, 1, 1)
    first = constant(x)
    assert constant(x) is first
    first.add_(1)
    assert constant(x).eq(0).all()
    (buffer,) = constant.buffers()
    constant.load_state_dict({key: torch.full_like(buffer, 2.0) for key in constant.state_dict()})
    assert constant(x).eq(2).all()
    assert constant(x.double()).dtype == torch.float64
    constant.load_state_dict({key: torch.full_like(buffer, 4.0) for key in constant.state_dict()}, assign=True)
    assert constant(x).eq(4).all()
    constant.double()
    assert constant(x.double()).eq(4).all()


def test_sizes_and_large_tensors() -> None:
    constant = Constant(2, -3, read_only=True)
    for shape in [(1, 1, 4, 4), (5, 1, 4, 4), (2, 1, LARGEST, 1), (1, 1, 4, 4)]:
        assert constant(torch.zeros(shape)).shape == (shape[0], 2, *shape[2:])
    large = torch.zeros(2, 1, LARGEST, 1)
    assert constant(large) is not constant(large)
    assert constant._made._held[2].untyped_storage().nbytes() <= 8  # type: ignore[index]


def test_copies_and_pickles_hold_nothing() -> None:
    constant = Constant(3, -3, read_only=True)
    constant(torch.zeros(1, 3, 2, 2))
    for other in (copy.deepcopy(constant), pickle.loads(pickle.dumps(constant)), copy.deepcopy(Remembered())):
        assert vars(other.__dict__.get("_made", other)) == {"_held": None}
    assert list(constant.state_dict()) == ["numbers"]


def test_training_goes_on_after_inference_mode() -> None:
    model = dead(torch.mul)
    small, x = ds.compact(model, torch.randn(1, 3, 5, 5)).model, torch.randn(1, 3, 5, 5)
    with torch.inference_mode():
        small(x)
    x.requires_grad_()
    small(x).sum().backward()
    own = x.grad
    x.grad = None
    model(x).sum().backward()
    torch.testing.assert_close(own, x.grad)


@pytest.mark.filterwarnings("ignore")
def test_compilers_and_transforms_see_how_it_is_made() -> None:
    model = dead(torch.add)
    small, x = ds.compact(model, torch.randn(1, 3, 5, 5)).model, torch.randn(4, 1, 3, 5, 5)
    compiled = torch.compile(small, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected = torch.stack([model(each) for each in x])
        torch.testing.assert_close(torch.vmap(small)(x), expected)
        torch.testing.assert_close(torch.stack([small(each) for each in x]), expected)
        torch.testing.assert_close(torch.stack([compiled(each) for each in x]), expected)
        traced = torch.jit.trace(small, x[0], check_trace=False)
        torch.testing.assert_close(torch.stack([traced(each) for each in x]), expected)
    gradient = torch.func.grad(lambda given: small(given).sum())(x[0])
    torch.testing.assert_close(gradient, torch.func.grad(lambda given: model(given).sum())(x[0]))
    assert torch.export.export(small, (x[0],)).module()(x[0]).isfinite().all()
