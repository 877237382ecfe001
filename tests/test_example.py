import pytest
import torch
from torch import nn

from diffsparse import SparsityError
from diffsparse.example import Example

X = torch.arange(6.0).reshape(2, 3)


class Add(nn.Module):
    def forward(self, x, y, *, scale=1.0):
        return scale * (x + y)


def test_a_tensor_is_the_only_argument():
    assert torch.equal(Example.of(X).run(nn.Identity()), X)


def test_a_tuple_holds_positional_arguments():
    assert torch.equal(Example.of((X, 1.0)).run(Add()), X + 1)


def test_a_dict_holds_keyword_arguments():
    assert torch.equal(Example.of({"y": X, "x": X, "scale": 0.5}).run(Add()), X)


def test_the_tensors_given_are_not_written_to():
    given = torch.tensor([-1.0, 1.0])
    assert Example.of(given).run(nn.ReLU(inplace=True)).tolist() == [0, 1]
    assert given.tolist() == [-1, 1]


def test_nested_tensors_are_found_and_described():
    example = Example.of(([X, {"a": X.long()}], None, Add()))
    assert len(example.tensors) == 2
    assert str(example) == "(float32[2, 3], {a: int64[2, 3]}), None, Add"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([X], "got list"),
        (None, "got NoneType"),
        ((), "no tensor"),
        ({}, "no tensor"),
        ((3, "a"), r"no tensor: \(3, 'a'\)"),
        ({1: X}, "strings"),
        (torch.zeros(0, 3), r"an empty tensor: float32\[0, 3\]"),
    ],
)
def test_wrong_examples(wrong, message):
    with pytest.raises(SparsityError, match=message):
        Example.of(wrong)


def test_a_failing_model_keeps_its_error_as_the_cause():
    with pytest.raises(SparsityError, match=r"Linear does not run on the example \(float32\[2, 3\]\): mat1") as caught:
        Example.of(X).run(nn.Linear(4, 1))
    assert type(caught.value.__cause__) is RuntimeError
