import sys

import pytest
import torch
from sklearn import datasets

from diffsparse import SparsityError
from diffsparse.data.digits import open_digits


def test_missing_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SparsityError, match=r"diffsparse\[demo\]"):
        open_digits()


def test_the_data_set_is_complete_disjoint_and_normalised() -> None:
    digits = open_digits()
    assert (len(digits.train), len(digits.test), digits.input_shape) == (1348, 449, (1, 8, 8))
    ((inputs, targets),) = digits.train.in_order(1348)
    assert abs(inputs.mean()) < 1e-5
    assert abs(inputs.std() - 1) < 1e-3
    assert torch.equal(targets, digits.train.labels)
    # together they are what scikit-learn carries, every image once
    images = torch.cat([digits.train.images, digits.test.images]).flatten(1)
    labels = torch.cat([digits.train.labels, digits.test.labels])
    found = sorted((*image, label) for image, label in zip(images.tolist(), labels.tolist(), strict=True))
    bunch = datasets.load_digits()
    assert found == sorted((*image, label) for image, label in zip(bunch.data, bunch.target, strict=True))
    assert digits.classes == tuple(str(digit) for digit in range(digits.num_outputs))


def test_training_images_are_not_augmented() -> None:
    train = open_digits().train
    ((inputs, _),) = train.shuffled(len(train), seed=0, epoch=0)
    ((plain, _),) = train.in_order(len(train))
    assert torch.equal(inputs.flatten(1).sort(0).values, plain.flatten(1).sort(0).values)
