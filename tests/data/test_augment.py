import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.data.augment import ShiftAndFlip


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
