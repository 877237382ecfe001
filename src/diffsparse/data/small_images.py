"""Small images that fit in memory: CIFAR-10 and CIFAR-100 from their binary files, and scikit-learn's digits."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.data.archive import Archive, locate
from diffsparse.data.dataset import Batch, DataSet
from diffsparse.data.tensor_part import Normalisation, ShiftAndFlip, TensorPart
from diffsparse.errors import SparsityError, import_extra

TEST_FRACTION = 0.25
SPLIT_SEED = 0
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
SIZES = (32, 16, 8, 4)
"""Widths of CIFAR images: their own, and those that whole blocks of pixels are averaged to."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The archive of one of the two data sets, and the files in its folder.

    A record of a file is one or two label bytes and 3,072 bytes of image.
    """

    name: str
    url: str
    md5: str
    folder: str
    train_files: tuple[str, ...]
    train_records: int
    """Images in each of the files to train on."""
    test_file: str
    test_records: int
    names_file: str
    """A text file with the name of one class per line."""
    label_values: tuple[int, ...]
    """How many values each label byte of a record may have; the last byte is the class."""

    @property
    def archive(self) -> Archive:
        files = (*self.train_files, self.test_file, self.names_file)
        return Archive(url=self.url, md5=self.md5, folder=self.folder, files=files)


CIFAR10 = Layout(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    train_records=10_000,
    test_file="test_batch.bin",
    test_records=10_000,
    names_file="batches.meta.txt",
    label_values=(10,),
)
CIFAR100 = Layout(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    train_records=50_000,
    test_file="test.bin",
    test_records=10_000,
    names_file="fine_label_names.txt",
    label_values=(20, 100),
)


def open_cifar(
    layout: Layout, root: Path, *, augment: bool = True, fetch: bool = False, size: int | None = None
) -> DataSet:
    """The data set under `root`, normalised by the statistics of its training images.

    `augment` shifts training images by up to an eighth of their width and mirrors half of them; `fetch` downloads
    missing files; `size` averages blocks of pixels, so that images become smaller.
    """
    size = SHAPE[-1] if size is None else size
    if size not in SIZES:
        others = ", ".join(map(str, SIZES[1:]))
        raise SparsityError(f"{layout.name} has images of 32 x 32, or averaged to {others}; got image_size {size}")
    folder = locate(layout.archive, root, fetch=fetch)
    classes = _read_names(folder / layout.names_file, layout.label_values[-1])
    files = [(file, layout.train_records) for file in layout.train_files] + [(layout.test_file, layout.test_records)]
    *parts, test = [_averaged(_read(folder / file, count, layout.label_values), size) for file, count in files]
    images, labels = map(torch.cat, zip(*parts, strict=True))
    return _data_set(layout.name, (images, labels), test, classes, ShiftAndFlip(pad=size // 8) if augment else None)


def _averaged(part: Batch, size: int) -> Batch:
    """The images of a file at `size` pixels."""
    images, labels = part
    return (images if size == SHAPE[-1] else F.avg_pool2d(images.float(), SHAPE[-1] // size), labels)


def _read(path: Path, records: int, label_values: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The (records, 3, 32, 32) bytes and (records,) classes of one file."""
    length = len(label_values) + PIXELS
    try:
        found = path.stat().st_size
        if found != records * length:
            expected = f"{records * length:,} bytes ({records:,} records of {length:,})"
            raise SparsityError(f"{path} must have {expected}, but has {found:,}")
        table = np.fromfile(path, dtype=np.uint8).reshape(records, length)
    except OSError as error:
        raise SparsityError(f"cannot read {path}: {error.strerror}") from error
    for byte, values in enumerate(label_values):
        wrong = np.flatnonzero(table[:, byte] >= values)
        if len(wrong):
            where = f"{table[wrong[0], byte]} in record {wrong[0]}, counted from 0"
            raise SparsityError(f"{path} has the label {where}; expected 0 to {values - 1}")
    images = np.ascontiguousarray(table[:, len(label_values) :]).reshape(records, *SHAPE)
    labels = table[:, len(label_values) - 1].astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(labels)


def _read_names(path: Path, count: int) -> tuple[str, ...]:
    try:
        names = tuple(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise SparsityError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(names) != count:
        raise SparsityError(f"{path} must name {count} classes, one per line, but names {len(names)}")
    return names


def open_digits() -> DataSet:
    """1,797 handwritten digits of 8 x 8 pixels; a fixed quarter is the test part. Training images are not augmented."""
    bunch = import_extra("sklearn.datasets", "the digits need scikit-learn", "scikit-learn").load_digits()
    images, labels = torch.from_numpy(bunch.images).float().unsqueeze(1), torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_out = round(TEST_FRACTION * len(images))
    test, train = order[:held_out], order[held_out:]
    return _data_set("digits", (images[train], labels[train]), (images[test], labels[test]), tuple("0123456789"))


def _data_set(
    name: str, train: Batch, test: Batch, classes: tuple[str, ...], augmentation: ShiftAndFlip | None = None
) -> DataSet:
    """A data set of images and labels, normalised by the statistics of the training images."""
    normalisation = Normalisation.of(train[0])
    return DataSet(
        name=name,
        train=TensorPart(images=train[0], labels=train[1], normalisation=normalisation, augmentation=augmentation),
        test=TensorPart(images=test[0], labels=test[1], normalisation=normalisation),
        input_shape=tuple(train[0].shape[1:]),
        num_outputs=len(classes),
        classes=classes,
    )
