"""A part of a data set on disk: image files that Pillow reads, cropped and scaled to one size."""

import math
import os
from collections.abc import Generator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffsparse.data.part import AUGMENTATION, Batch, Part, Share, as_slice, random_numbers
from diffsparse.data.transform import Normalisation
from diffsparse.errors import SparsityError, require_whole

if TYPE_CHECKING:
    from PIL.Image import Image

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom of a rectangle in an image, in pixels."""

# The usual statistics of ImageNet, for bytes.
IMAGENET = Normalisation(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
MOST_WORKERS = 16
# The centre crop for tests takes 224 of 256 pixels of the shorter side, as is usual for ImageNet.
CENTRE = 224 / 256
# Random crops: share of the image's area, ratio of width to height, and how often to try.
AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)
TRIES = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class ImagePart(Part):
    """Image files and labels; worker processes read, crop and scale the images in advance."""

    files: tuple[str, ...]
    """Where each image is."""
    labels: Tensor
    """(N,) int64, the class of each image."""
    size: int
    """Width and height of the inputs."""
    augment: bool
    """Whether `shuffled` takes random crops and mirrors; otherwise it takes the centre, as `in_order` does."""
    workers: int | None = None
    """The number of worker processes; by default this process's share of the cores."""

    def __post_init__(self) -> None:
        require_whole("image_size", self.size, low=1)
        if self.workers is not None:
            require_whole("workers", self.workers, low=0)
        assert self.labels.shape == (len(self.files),)

    def __len__(self) -> int:
        return len(self.files)

    def make_batches(
        self, batches: list[range], order: Tensor, share: Share, drawn_by: tuple[int, int] | None
    ) -> Generator[Batch, None, None]:
        workers = cores_per_process(share) if self.workers is None else self.workers
        loader = DataLoader(
            _Reader(self, order, drawn_by if self.augment else None),
            # one item of the loader is a whole batch
            sampler=batches,
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=min(workers, len(batches)),
            # without a generator of its own, starting the workers would draw from torch's global one
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, str):
                raise SparsityError(batch)
            yield batch


@dataclass(frozen=True, eq=False)
class _Reader(Dataset["Batch | str"]):
    """Makes the batch of given positions, in a worker process."""

    part: ImagePart
    order: Tensor
    drawn_by: tuple[int, int] | None

    def __getitem__(self, positions: range) -> Batch | str:
        """The batch, or an error message: a raised error would leave the worker with its traceback as text."""
        try:
            images = torch.stack([self._image(position) for position in positions])
        except SparsityError as error:
            return str(error)
        return IMAGENET(images), self.part.labels[self.order[as_slice(positions)]]

    def _image(self, position: int) -> Tensor:
        random = None if self.drawn_by is None else random_numbers(*self.drawn_by, AUGMENTATION, position)
        return read_image(self.part.files[int(self.order[position])], self.part.size, random)


def cores_per_process(share: Share) -> int:
    """The cores of this machine for each process: at least one, and at most a useful number."""
    # macOS and Windows do not say which cores this process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # torchrun says how many of the processes are on this machine
    here = int(os.environ.get("LOCAL_WORLD_SIZE", share.world))
    return max(1, min(cores // here, MOST_WORKERS))


def _unchanged(batch: Any) -> Any:
    return batch


def pillow() -> ModuleType:
    """Pillow's module `Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise SparsityError("image files need Pillow; install it with: pip install 'diffsparse[images]'") from None
    return Image


def read_image(path: str, size: int, random: np.random.Generator | None) -> Tensor:
    """(3, size, size) bytes: a random crop, perhaps mirrored; without `random` the centre of the image."""
    image = _read_rgb(path)
    box = centre_box(image.width, image.height) if random is None else random_box(image.width, image.height, random)
    pixels = np.array(image.resize((size, size), pillow().Resampling.BILINEAR, box=box))
    if random is not None and random.random() < 0.5:
        pixels = pixels[:, ::-1].copy()
    return torch.from_numpy(pixels).permute(2, 0, 1)


def centre_box(width: int, height: int) -> Box:
    """The square in the centre with 7/8 of the shorter side.

    Example:
        >>> centre_box(32, 16)
        (9.0, 1.0, 23.0, 15.0)
    """
    side = min(width, height) * CENTRE
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_box(width: int, height: int, random: np.random.Generator) -> Box:
    """A rectangle of random area and ratio at a random place; in the centre if none of a few tries fits."""
    for _ in range(TRIES):
        area = width * height * random.uniform(*AREAS)
        ratio = math.exp(random.uniform(math.log(RATIOS[0]), math.log(RATIOS[1])))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = int(random.integers(0, width - across, endpoint=True))
            top = int(random.integers(0, height - down, endpoint=True))
            return left, top, left + across, top + down
    # the largest rectangle with an allowed ratio
    across, down = min(width, round(height * RATIOS[1])), min(height, round(width / RATIOS[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


def _read_rgb(path: str) -> "Image":
    module = pillow()
    try:
        with module.open(path) as image:
            return _to_rgb(image)
    # decoders raise all kinds of errors on damaged bytes
    except Exception as error:
        reason = getattr(error, "strerror", None) or error
        raise SparsityError(f"cannot read the image {path}: {reason}") from error


def _to_rgb(image: "Image") -> "Image":
    if image.mode in ("I", "F"):
        raise ValueError("it has 32 bits per pixel, expected 8 or 16 bits per channel")
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits at 255
        return pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")  # type: ignore[no-any-return]
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
