"""What all frameworks share, and what is said where a package is missing."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from diffsparse import SparsityError
from diffsparse.example import Example
from diffsparse.integrations.joining import STATE_FILE, add_gradient, check_steps, read_state, write_state
from tests.integrations.subjects import made


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_only_what_the_optimiser_holds_gets_the_gradient(scale: float) -> None:
    held, other, frozen = (nn.Parameter(torch.tensor(value)) for value in (1.0, 2.0, 3.0))
    frozen.requires_grad_(False)
    add_gradient(held * other * frozen, [torch.optim.SGD([held, frozen])], scale)
    assert held.grad == 6 * scale
    assert other.grad is None
    assert frozen.grad is None


def test_a_term_without_gradient_adds_nothing() -> None:
    weight = nn.Parameter(torch.ones(()))
    add_gradient(None, [torch.optim.SGD([weight])])
    add_gradient(torch.zeros(()), [torch.optim.SGD([weight])])
    assert weight.grad is None


def test_an_unknown_number_of_steps_is_not_compared() -> None:
    for planned in (24, -1, float("inf")):
        check_steps(made()[1], planned)


def test_the_state_in_a_folder_is_plain_json(tmp_path: Path) -> None:
    _, budget = made()
    assert read_state(tmp_path) is None
    write_state(budget, tmp_path)
    assert read_state(tmp_path) == budget.state_dict()
    (tmp_path / STATE_FILE).write_text("{")
    with pytest.raises(SparsityError, match=f"{STATE_FILE}' cannot be read"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    ("framework", "packages"),
    [("lightning", "lightning"), ("accelerate", "accelerate"), ("transformers", "transformers accelerate")],
)
def test_a_missing_package_is_named(framework: str, packages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"diffsparse.integrations.{framework}", raising=False)
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(SparsityError, match=f"pip install {packages}$"):
        importlib.import_module(f"diffsparse.integrations.{framework}")


def test_an_example_goes_where_the_model_is() -> None:
    example = Example.of(torch.zeros(2, 3))
    assert example.beside(nn.Linear(3, 3)) is example
    assert example.beside(nn.ReLU()) is example
    assert example.beside(nn.Linear(3, 3, device="meta")).device.type == "meta"
