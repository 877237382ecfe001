import sys

import pytest
import torch

from diffsparse import SparsityError
from diffsparse.data import load_digits


def test_split_is_complete_disjoint_and_normalised() -> None:
    split = load_digits()
    assert len(split.train_images) + len(split.test_images) == 1797
    assert split.train_images.shape[1:] == (1, 8, 8)
    assert abs(split.train_images.mean()) < 1e-5
    assert abs(split.train_images.std() - 1) < 1e-5
    assert set(split.test_labels.tolist()) == set(range(10))


def test_seed_decides_the_split() -> None:
    assert torch.equal(load_digits(seed=3).test_labels, load_digits(seed=3).test_labels)
    assert not torch.equal(load_digits(seed=3).test_labels, load_digits(seed=4).test_labels)


def test_impossible_fraction_is_named() -> None:
    with pytest.raises(SparsityError, match=r"got 1\.5"):
        load_digits(test_fraction=1.5)


def test_missing_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SparsityError, match=r"diffsparse\[demo\]"):
        load_digits()
