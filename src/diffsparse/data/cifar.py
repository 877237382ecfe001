"""CIFAR-10 and CIFAR-100 from their official binary files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffsparse.data.archive import Archive, locate
from diffsparse.data.dataset import DataSet
from diffsparse.data.tensor_part import TensorPart
from diffsparse.data.transform import Normalisation, ShiftAndFlip
from diffsparse.errors import SparsityError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of one of the two data sets: records of one or two label bytes and 3,072 bytes of image."""

    name: str
    """Name of the data set on the command line."""
    url: str
    """Address of its archive."""
    md5: str
    """Checksum of its archive."""
    folder: str
    """The folder in the archive."""
    train_files: tuple[str, ...]
    """The files to train on, in order."""
    train_records: int
    """Images in each of them."""
    test_file: str
    """The file to test on."""
    test_records: int
    """Images in it."""
    names_file: str
    """A text file with the name of one class per line."""
    label_values: tuple[int, ...]
    """How many values each label byte of a record may have; the last byte is the class."""

    @property
    def archive(self) -> Archive:
        """The archive with these files."""
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


def open_cifar(layout: Layout, root: Path, *, augment: bool = True, fetch: bool = False) -> DataSet:
    """The data set under `root`, normalised by the statistics of its training images.

    `augment` shifts training images by up to 4 pixels and mirrors half of them; `fetch` downloads missing files.
    """
    folder = locate(layout.archive, root, fetch=fetch)
    classes = _read_names(folder / layout.names_file, layout.label_values[-1])
    parts = [_read(folder / file, layout.train_records, layout.label_values) for file in layout.train_files]
    images, labels = torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
    test_images, test_labels = _read(folder / layout.test_file, layout.test_records, layout.label_values)
    normalisation = Normalisation.of(images)
    augmentation = ShiftAndFlip(pad=4) if augment else None
    return DataSet(
        name=layout.name,
        train=TensorPart(images=images, labels=labels, normalisation=normalisation, augmentation=augmentation),
        test=TensorPart(images=test_images, labels=test_labels, normalisation=normalisation),
        input_shape=SHAPE,
        num_outputs=len(classes),
        classes=classes,
    )


def _read(path: Path, records: int, label_values: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The (records, 3, 32, 32) bytes and (records,) classes of one file."""
    length = len(label_values) + PIXELS
    try:
        found = path.stat().st_size
        if found != records * length:
            raise SparsityError(
                f"{path} must have {records * length:,} bytes ({records:,} records of {length:,}), but has {found:,}"
            )
        table = np.fromfile(path, dtype=np.uint8).reshape(records, length)
    except OSError as error:
        raise SparsityError(f"cannot read {path}: {error.strerror}") from error
    for byte, values in enumerate(label_values):
        wrong = np.flatnonzero(table[:, byte] >= values)
        if len(wrong):
            record = wrong[0]
            raise SparsityError(
                f"{path} has the label {table[record, byte]} in record {record}, counted from 0; "
                f"expected 0 to {values - 1}"
            )
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
