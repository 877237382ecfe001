"""Image files: read by Pillow, cut and scaled to one size."""

import math
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from diffsparse.errors import SparsityError

if TYPE_CHECKING:
    from PIL.Image import Image

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom of a rectangle in an image, in pixels."""

# The middle part of the shorter side that is tested on: 224 of 256 pixels, as is usual for ImageNet.
CENTRE = 224 / 256
# A random crop has this share of the image's area, and this ratio of width to height.
AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)
TRIES = 10


def pillow() -> ModuleType:
    """Pillow's module `Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise SparsityError(
            "image files are read with Pillow; install it with: pip install 'diffsparse[images]'"
        ) from None
    return Image


def read_image(path: str, size: int, random: np.random.Generator | None) -> Tensor:
    """(3, size, size) bytes: a random crop, mirrored or not, or without `random` the middle of the image."""
    image = _read_rgb(path)
    box = centre_box(image.width, image.height) if random is None else random_box(image.width, image.height, random)
    pixels = np.array(image.resize((size, size), pillow().Resampling.BILINEAR, box=box))
    if random is not None and random.random() < 0.5:
        pixels = pixels[:, ::-1].copy()
    return torch.from_numpy(pixels).permute(2, 0, 1)


def centre_box(width: int, height: int) -> Box:
    """The square in the middle that has 7/8 of the shorter side.

    Example:
        >>> centre_box(32, 16)
        (9.0, 1.0, 23.0, 15.0)
    """
    side = min(width, height) * CENTRE
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, random: np.random.Generator) -> Box:
    """A rectangle of random area and ratio at a random place; in the middle if none of a few tries fits in."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*AREAS)
        ratio = math.exp(random.uniform(math.log(RATIOS[0]), math.log(RATIOS[1])))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = int(random.integers(0, width - across, endpoint=True))
            top = int(random.integers(0, height - down, endpoint=True))
            return left, top, left + across, top + down
    # the largest one with an allowed ratio
    across, down = min(width, round(height * RATIOS[1])), min(height, round(width / RATIOS[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


def _read_rgb(path: str) -> "Image":
    module = pillow()
    try:
        with module.open(path) as image:
            return _to_rgb(image)
    # decoders raise whatever they like on damaged bytes
    except Exception as error:
        reason = getattr(error, "strerror", None) or error
        raise SparsityError(f"cannot read the image {path}: {reason}") from error


def _to_rgb(image: "Image") -> "Image":
    if image.mode in ("I", "F"):
        raise ValueError("it has 32 bits a pixel, where 8 or 16 bits a channel are expected")
    if image.mode.startswith("I;16"):
        # Pillow would cut 16 bits off at 255
        return pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")  # type: ignore[no-any-return]
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
