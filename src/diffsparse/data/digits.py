"""Handwritten digits that scikit-learn carries: 1,797 images of 8 x 8, ten classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffsparse.errors import SparsityError


@dataclass(frozen=True, kw_only=True)
class Split:
    """Images and labels for training and for testing."""

    train_images: Tensor
    """(N, 1, 8, 8), zero mean and unit variance over the training part."""
    train_labels: Tensor
    """(N,), the digit."""
    test_images: Tensor
    """Images that training never sees."""
    test_labels: Tensor
    """Their digits."""


def load_digits(test_fraction: float = 0.25, seed: int = 0) -> Split:
    """The digits, shuffled by `seed` and split."""
    try:
        from sklearn.datasets import load_digits as embedded
    except ImportError:
        raise SparsityError(
            "the digits come with scikit-learn; install it with: pip install 'diffsparse[demo]'"
        ) from None
    bunch = embedded()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    held_out = round(test_fraction * len(images))
    if not 0 < held_out < len(images):
        raise SparsityError(f"test_fraction must leave images on both sides, got {test_fraction}")
    test, train = order[:held_out], order[held_out:]
    mean, std = images[train].mean(), images[train].std()
    images = (images - mean) / std
    return Split(
        train_images=images[train], train_labels=labels[train], test_images=images[test], test_labels=labels[test]
    )
