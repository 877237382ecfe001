import threading

import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.data.prefetch import THREAD_NAME
from diffsparse.data.tensor_part import TensorPart
from diffsparse.data.transform import Normalisation, ShiftAndFlip
from tests.data.test_transform import slowly

PLAIN = Normalisation(mean=(0.0,), std=(1.0,))


def test_padding_is_black_before_normalisation() -> None:
    # a single bright pixel: where the shift brings in the border, inputs are those of a black pixel
    images = torch.full((64, 1, 1, 1), 255, dtype=torch.uint8)
    normalisation = Normalisation(mean=(100.0,), std=(5.0,))
    part = TensorPart(
        images=images, labels=torch.zeros(64).long(), normalisation=normalisation, augmentation=ShiftAndFlip(pad=1)
    )
    ((inputs, _),) = part.shuffled(64, seed=0, epoch=0)
    assert set(inputs.flatten().tolist()) == {-20.0, 31.0}


def test_an_augmented_batch_is_that_of_single_images() -> None:
    images = torch.randint(0, 256, (30, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    normalisation = Normalisation.of(images)
    part = TensorPart(
        images=images, labels=torch.arange(30), normalisation=normalisation, augmentation=ShiftAndFlip(pad=2)
    )
    ((inputs, entries),) = part.shuffled(30, seed=0, epoch=0)
    mean, std = np.array(normalisation.mean)[:, None, None], np.array(normalisation.std)[:, None, None]
    shifts = set()
    for image, entry in zip(inputs.numpy(), entries.tolist(), strict=True):
        fits = [
            draw
            for draw in np.ndindex(5, 5, 2)
            if np.allclose((slowly(images[entry].numpy(), 2, *draw) - mean) / std, image, atol=1e-5)
        ]
        assert len(fits) == 1, "exactly one shift and side explains the input"
        shifts.add(fits[0])
    assert len(shifts) > 15


def test_without_augmentation_inputs_are_the_images() -> None:
    images = torch.rand(10, 1, 3, 3)
    part = TensorPart(images=images, labels=torch.arange(10), normalisation=PLAIN)
    for inputs, entries in part.shuffled(5, seed=0, epoch=0):
        assert torch.equal(inputs, images[entries])
        inputs.zero_()
    assert (images > 0).any(), "batches are copies"


def test_stopping_early_leaves_no_thread() -> None:
    part = TensorPart(images=torch.rand(100, 1, 3, 3), labels=torch.arange(100), normalisation=PLAIN)
    for _ in part.shuffled(2, seed=0, epoch=0):
        break
    batches = part.in_order(2)
    next(batches)
    batches.close()
    assert [thread for thread in threading.enumerate() if thread.name == THREAD_NAME] == []


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 3), torch.zeros(2).long(), r"\(N, C, H, W\) .* got \(2, 3, 3\)"),
        (torch.zeros(2, 1, 3, 3).int(), torch.zeros(2).long(), r"got .* torch\.int32"),
        (torch.zeros(2, 1, 3, 3), torch.zeros(3).long(), r"labels must be \(2,\) .* got \(3,\)"),
        (torch.zeros(2, 1, 3, 3), torch.zeros(2), r"labels must be .* got .* torch\.float32"),
        (torch.zeros(2, 3, 3, 3), torch.zeros(2).long(), "normalisation is for 1 channels, the images have 3"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(SparsityError, match=message):
        TensorPart(images=images, labels=labels, normalisation=PLAIN)
