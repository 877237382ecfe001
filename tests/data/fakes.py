"""Small data sets in the layout of the real ones."""

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from diffsparse.data.small_images import CIFAR10, CIFAR100, Layout

SMALL10 = replace(CIFAR10, train_records=6, test_records=20)
SMALL100 = replace(CIFAR100, train_records=200, test_records=100)


def cifar_files(layout: Layout, seed: int = 0) -> dict[str, bytes]:
    """The files of a data set of random images; record i of a file has the class i modulo the classes."""
    random = np.random.default_rng(seed)

    def records(count: int) -> bytes:
        labels = [np.arange(count) % values for values in layout.label_values]
        images = random.integers(0, 256, (count, 3072))
        return np.column_stack([*labels, images]).astype(np.uint8).tobytes()

    names = "".join(f"class{number}\n" for number in range(layout.label_values[-1]))
    return {
        **{file: records(layout.train_records) for file in layout.train_files},
        layout.test_file: records(layout.test_records),
        layout.names_file: f"{names}\n".encode(),
    }


def write_cifar(layout: Layout, root: Path) -> Path:
    """The files in their folder under `root`."""
    folder = root / layout.folder
    folder.mkdir(parents=True)
    for name, content in cifar_files(layout).items():
        (folder / name).write_bytes(content)
    return folder


def packed(members: dict[str, bytes]) -> bytes:
    """A tar.gz archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def packed_cifar(layout: Layout) -> tuple[Layout, bytes]:
    """An archive of a small data set, and the layout that has its checksum."""
    files = {f"{layout.folder}/{name}": content for name, content in cifar_files(layout).items()}
    content = packed({f"{layout.folder}/readme.html": b"not needed", **files})
    return replace(layout, md5=hashlib.md5(content).hexdigest()), content


def write_images(folder: Path, counts: dict[str, int], size: tuple[int, int] = (12, 10), ending: str = "png") -> None:
    """One folder of random images a class."""
    from PIL import Image

    random = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.{ending}")
