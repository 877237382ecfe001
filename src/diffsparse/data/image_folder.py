"""Data sets of image files, one folder per class (your own, and ImageNet): found, read, cropped and scaled."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffsparse.data.dataset import AUGMENTATION, Batch, DataSet, Draws, Part, Share, as_slice, random_numbers
from diffsparse.data.tensor_part import Normalisation
from diffsparse.errors import SparsityError, import_extra, require_whole

if TYPE_CHECKING:
    from PIL.Image import Image

# Left, top, right and bottom of a rectangle in an image, in pixels.
Box: TypeAlias = tuple[float, float, float, float]

# The usual statistics of ImageNet, for bytes.
IMAGENET = Normalisation(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
MOST_WORKERS = 16
# The centre crop for tests takes 224 of 256 pixels of the shorter side, as is usual for ImageNet.
CENTRE = 224 / 256
# Random crops: share of the image's area, ratio of width to height, and how often to try.
AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)
TRIES = 10
DEFAULT_SIZE = 224
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
SHOWN = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class ImagePart(Part):
    """Image files and their classes (N,); worker processes read, crop and scale the images in advance."""

    files: tuple[str, ...]
    labels: Tensor
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

    def make_batches(self, batches: list[range], order: Tensor, share: Share, drawn_by: Draws) -> Iterator[Batch]:
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


def open_folder(root: Path, *, augment: bool = True, image_size: int | None = None) -> DataSet:
    """Images in root/train/<class> and root/test/<class>, with root/val/<class> for validation.

    Without root/test, root/val is the test part. If `augment`, training images are cropped at random and mirrored; all
    others are cropped at the centre. Every crop is scaled to `image_size`, by default 224.
    """
    found = [name for name in ("test", "val") if (root / name).is_dir()]
    if not found or not (root / "train").is_dir():
        raise SparsityError(f"{root} must hold the folders train and test (or val), but holds {_shown(root)}")
    return _open("folder", root, found, augment, image_size)


def open_imagenet(root: Path, *, augment: bool = True, image_size: int | None = None) -> DataSet:
    """ImageNet, or some of its classes: train/n01440764/*.JPEG and val/n01440764/*.JPEG in `root` or in root/imagenet.

    The validation images are the test part, as usual. Images are cropped and scaled as in `open_folder`.
    """
    folder = root / "imagenet" if (root / "imagenet").is_dir() else root
    if not (folder / "train").is_dir() or not (folder / "val").is_dir():
        raise SparsityError(f"{folder} must hold ImageNet's folders train and val, but holds {_shown(folder)}")
    data = _open("imagenet", folder, ["val"], augment, image_size)
    for name in data.classes:
        if not re.fullmatch(r"n\d{8}", name):
            raise SparsityError(f"{folder / 'train' / name} must be named like n01440764, as ImageNet's classes are")
    return data


def _open(name: str, root: Path, others: Sequence[str], augment: bool, image_size: int | None) -> DataSet:
    """Train on root/train, test on the first of `others` and validate on the second, if there is one."""
    pillow()
    size = DEFAULT_SIZE if image_size is None else image_size
    classes = _classes(root / "train")
    for other in others:
        if classes != (found := _classes(root / other)):
            only = {"train": sorted({*classes} - {*found}), other: sorted({*found} - {*classes})}
            parts = [f"only {part} has {_some(names)}" for part, names in only.items() if names]
            raise SparsityError(f"train and {other} in {root} must hold the same classes: {', '.join(parts)}")
    train, test, *validation = [_part(root / part, classes, size, augment) for part in ("train", *others)]
    return DataSet(
        name=name,
        train=train,
        test=test,
        validation=validation[0] if validation else None,
        input_shape=(3, size, size),
        num_outputs=len(classes),
        classes=classes,
    )


def _classes(folder: Path) -> tuple[str, ...]:
    classes = tuple(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))
    if not classes:
        raise SparsityError(f"{folder} must hold one folder of images per class, but holds {_shown(folder)}")
    return classes


def _part(folder: Path, classes: tuple[str, ...], size: int, augment: bool) -> ImagePart:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        images = sorted(entry.path for entry in _entries(folder / name) if entry.name.lower().endswith(ENDINGS))
        if not images:
            found = _shown(folder / name)
            raise SparsityError(f"{folder / name} must hold images ({' '.join(ENDINGS)}), but holds {found}")
        files += images
        labels += [label] * len(images)
    return ImagePart(files=tuple(files), labels=torch.tensor(labels), size=size, augment=augment)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of `folder` that are not hidden."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise SparsityError(f"cannot read the folder {folder}: {error.strerror}") from error


def _shown(folder: Path) -> str:
    return _some(sorted(entry.name for entry in _entries(folder))) or "nothing"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


@dataclass(frozen=True, eq=False)
class _Reader(Dataset["Batch | str"]):
    """Makes the batch of given positions, in a worker process."""

    part: ImagePart
    order: Tensor
    drawn_by: Draws

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


def _unchanged(batch: Any) -> Any:
    # not a lambda: where processes are spawned, the loader is pickled
    return batch


def cores_per_process(share: Share) -> int:
    """The cores of this machine for each process: at least one, and at most a useful number."""
    # macOS and Windows do not say which cores this process may use
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # torchrun says how many of the processes are on this machine
    here = int(os.environ.get("LOCAL_WORLD_SIZE", share.world))
    return max(1, min(cores // here, MOST_WORKERS))


def pillow() -> Any:
    return import_extra("PIL.Image", "image files need Pillow", "pillow")


def read_image(path: str, size: int, random: np.random.Generator | None) -> Tensor:
    """(3, size, size) bytes: a random crop, perhaps mirrored; without `random` the centre of the image."""
    image = _read_rgb(path)
    box = centre_box(image.width, image.height) if random is None else random_box(image.width, image.height, random)
    pixels = np.array(image.resize((size, size), pillow().Resampling.BILINEAR, box=box))
    if random is not None and random.random() < 0.5:
        pixels = pixels[:, ::-1].copy()
    return torch.from_numpy(pixels).permute(2, 0, 1)


def centre_box(width: int, height: int) -> Box:
    """The square in the centre with 7/8 of the shorter side."""
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
