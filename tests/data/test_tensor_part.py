import threading

import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.data.prefetch import THREAD_NAME
from diffsparse.data.tensor_part import Normalisation, ShiftAndFlip, TensorPart

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


def slowly(image: np.ndarray, pad: int, row: int, column: int, mirrored: int) -> np.ndarray:
    """One (C, H, W) image at a time, one step after the other."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    cut = padded[:, row : row + height, column : column + width]
    return cut[:, :, ::-1] if mirrored else cut


@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 8, 8), (1, 5, 7), (2, 1, 3)])
def test_is_what_one_image_after_the_other_gives(
    pad: int, dtype: torch.dtype, channels: int, height: int, width: int
) -> None:
    images = torch.randint(1, 256, (40, channels, height, width), generator=torch.Generator().manual_seed(0)).to(dtype)
    augmentation = ShiftAndFlip(pad=pad)
    draws = augmentation.draw(40, np.random.default_rng(0))
    expected = [slowly(image, pad, *draw) for image, draw in zip(images.numpy(), draws.tolist(), strict=True)]
    changed = augmentation(images, draws)
    assert changed.dtype == dtype
    assert np.array_equal(changed.numpy(), np.stack(expected))


def test_every_shift_and_both_sides_are_equally_likely() -> None:
    draws = ShiftAndFlip(pad=2).draw(50_000, np.random.default_rng(0))
    for column in (0, 1):
        counts = draws[:, column].bincount()
        assert len(counts) == 5
        assert ((counts / 50_000 - 0.2).abs() < 0.01).all()
    assert abs(draws[:, 2].double().mean() - 0.5) < 0.01
    assert set(draws[:, 2].tolist()) == {0, 1}


def test_a_negative_pad_is_refused() -> None:
    with pytest.raises(SparsityError, match=r"pad must be .* got -1"):
        ShiftAndFlip(pad=-1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_statistics_are_those_of_each_channel(dtype: torch.dtype) -> None:
    images = torch.randint(0, 256, (7, 3, 4, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    images[:, 1] //= 3
    found = Normalisation.of(images)
    for channel in range(3):
        values = images[:, channel].numpy().astype(np.float64)
        assert found.mean[channel] == pytest.approx(values.mean(), rel=1e-12)
        assert found.std[channel] == pytest.approx(values.std(), rel=1e-12)
    normal = found(images)
    assert normal.dtype == torch.float32
    assert torch.allclose(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-6)
    assert torch.allclose(normal.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-6)


def test_the_images_given_stay_as_they_are() -> None:
    images = torch.ones(1, 1, 2, 2)
    Normalisation(mean=(1.0,), std=(2.0,))(images)
    assert torch.equal(images, torch.ones(1, 1, 2, 2))


def test_a_constant_channel_is_only_centred() -> None:
    images = torch.full((2, 1, 3, 3), 9, dtype=torch.uint8)
    assert torch.equal(Normalisation.of(images)(images), torch.zeros(2, 1, 3, 3))


@pytest.mark.parametrize(("mean", "std"), [((1.0,), (0.0,)), ((1.0, 2.0), (1.0,)), ((1.0,), (float("nan"),))])
def test_impossible_statistics_are_refused(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(SparsityError, match="a std above 0"):
        Normalisation(mean=mean, std=std)
