"""Data sets of image files, one folder per class: your own, and ImageNet."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from diffsparse.data.dataset import DataSet
from diffsparse.data.image_part import ImagePart, pillow
from diffsparse.errors import SparsityError

DEFAULT_SIZE = 224
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
SHOWN = 3


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
        _check_same(root, other, classes, _classes(root / other))
    train = _part(root / "train", classes, size, augment)
    test, *validation = [_part(root / other, classes, size, augment) for other in others]
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


def _check_same(root: Path, other: str, train: tuple[str, ...], classes: tuple[str, ...]) -> None:
    if train != classes:
        only = {"train": sorted({*train} - {*classes}), other: sorted({*classes} - {*train})}
        parts = [f"only {part} has {_some(names)}" for part, names in only.items() if names]
        raise SparsityError(f"train and {other} in {root} must hold the same classes: {', '.join(parts)}")


def _part(folder: Path, classes: tuple[str, ...], size: int, augment: bool) -> ImagePart:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        images = sorted(entry.path for entry in _entries(folder / name) if entry.name.lower().endswith(ENDINGS))
        if not images:
            raise SparsityError(
                f"{folder / name} must hold images ({' '.join(ENDINGS)}), but holds {_shown(folder / name)}"
            )
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
