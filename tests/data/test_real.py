"""The real data sets, where the variable DIFFSPARSE_DATA says that they are."""

import os
from pathlib import Path

import pytest
import torch

from diffsparse.data import open_data
from diffsparse.data.small_images import CIFAR10, CIFAR100, Layout
from diffsparse.data.tensor_part import TensorPart

FACTS = {
    "cifar10": (CIFAR10, 5000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": (CIFAR100, 500, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def there(layout: Layout) -> bool:
    root = os.environ.get("DIFFSPARSE_DATA")
    return bool(root) and (Path(root) / layout.folder).is_dir()


@pytest.mark.parametrize("name", FACTS)
def test_cifar_is_what_it_is_known_to_be(name: str) -> None:
    layout, a_class, mean, std = FACTS[name]
    if not there(layout):
        pytest.skip(f"{layout.folder} is not in DIFFSPARSE_DATA")
    data = open_data(name)
    assert isinstance(data.train, TensorPart)
    assert isinstance(data.test, TensorPart)
    assert data.train.labels.bincount().tolist() == [a_class] * data.num_outputs
    assert data.test.labels.bincount().tolist() == [10_000 // data.num_outputs] * data.num_outputs
    statistics = data.train.normalisation
    assert [value / 255 for value in statistics.mean] == pytest.approx(mean, abs=6e-5)
    assert [value / 255 for value in statistics.std] == pytest.approx(std, abs=6e-5)
    inputs, _ = next(data.train.shuffled(128, seed=0, epoch=0))
    assert inputs.shape == (128, *data.input_shape)
    assert torch.isfinite(inputs).all()


def test_the_classes_of_cifar10_have_their_names() -> None:
    if not there(CIFAR10):
        pytest.skip(f"{CIFAR10.folder} is not in DIFFSPARSE_DATA")
    words = "airplane automobile bird cat deer dog frog horse ship truck"
    assert open_data("cifar10").classes == tuple(words.split())
