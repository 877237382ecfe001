"""The handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, ten classes."""

import torch
from torch import Tensor

from diffsparse.data.dataset import DataSet
from diffsparse.data.tensor_part import TensorPart
from diffsparse.data.transform import Normalisation
from diffsparse.errors import SparsityError

TEST_FRACTION = 0.25
SPLIT_SEED = 0


def open_digits() -> DataSet:
    """The digits; a fixed quarter of them is the test part. Training images are not augmented."""
    images, labels = _embedded()
    train, test = _split(len(images))
    normalisation = Normalisation.of(images[train])
    return DataSet(
        name="digits",
        train=TensorPart(images=images[train], labels=labels[train], normalisation=normalisation),
        test=TensorPart(images=images[test], labels=labels[test], normalisation=normalisation),
        input_shape=tuple(images.shape[1:]),
        num_outputs=10,
        classes=tuple("0123456789"),
    )


def _embedded() -> tuple[Tensor, Tensor]:
    """(1797, 1, 8, 8) images with values from 0 to 16, and their digits."""
    try:
        from sklearn.datasets import load_digits as embedded
    except ImportError:
        raise SparsityError("the digits need scikit-learn; install it with: pip install 'diffsparse[demo]'") from None
    bunch = embedded()
    return torch.from_numpy(bunch.images).float().unsqueeze(1), torch.from_numpy(bunch.target).long()


def _split(length: int) -> tuple[Tensor, Tensor]:
    """The entries to train on and the entries to test on."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_out = round(TEST_FRACTION * length)
    return order[held_out:], order[:held_out]
