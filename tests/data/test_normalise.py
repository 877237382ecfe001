import numpy as np
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.data.normalise import Normalisation


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
