"""Data sets by name."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from diffsparse.data.dataset import DataSet
from diffsparse.data.image_folder import open_folder, open_imagenet
from diffsparse.data.small_images import CIFAR10, CIFAR100, open_cifar, open_digits
from diffsparse.errors import SparsityError
from diffsparse.registry import Registry

ROOT_VARIABLE = "DIFFSPARSE_DATA"


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """What the user asked for, as in `open_data`: the argument of the function that opens a data set."""

    name: str
    root: Path | None = None
    augment: bool = True
    image_size: int | None = None
    download: bool = False
    network: str | None = None

    def folder(self) -> Path:
        """The data root, given or from the environment; raises if there is none."""
        named = os.environ.get(ROOT_VARIABLE)
        if self.root is None and not named:
            raise SparsityError(
                f"{self.name} needs the folder that holds it: give a data root (--data-root) or set {ROOT_VARIABLE}"
            )
        root = Path(named or "") if self.root is None else Path(self.root)
        if root.exists() and not root.is_dir():
            raise SparsityError(f"the data root {root} must be a folder, but is a file")
        if not root.exists() and not self.download:
            raise SparsityError(f"the data root {root} does not exist")
        return root

    def refuse_download(self) -> None:
        """Raise if the user asked for a download."""
        if self.download:
            raise SparsityError(f"{self.name} cannot be downloaded: put its files under the data root by hand")

    def check_size(self, own: int | None) -> None:
        """Raise if the user asked for another image size than `own`; None for data without images."""
        if self.image_size not in (None, own):
            there = f"images of {own} x {own}" if own else "no images"
            raise SparsityError(f"{self.name} has {there}, got image_size {self.image_size}")


DATA_SETS = Registry[Callable[[DataRequest], DataSet]]("data set")


def register_data(name: str, opener: Callable[[DataRequest], DataSet]) -> None:
    """Let `open_data`, `diffsparse data NAME` and `diffsparse train --data NAME` find your data set.

    `opener` gets what the user asked for and makes the data set, or raises `SparsityError` if that is impossible. To be
    found by the command line, the module that calls this must be declared as an entry point of the group
    `diffsparse.features` in the pyproject.toml of your package. CONTRIBUTING.md has an example.
    """
    DATA_SETS.add(name, opener)


def names() -> tuple[str, ...]:
    """The names that `open_data` knows, in the order of registration."""
    return DATA_SETS.names()


def open_data(
    name: str,
    *,
    root: Path | None = None,
    augment: bool = True,
    image_size: int | None = None,
    download: bool = False,
    network: str | None = None,
) -> DataSet:
    """The data set called `name`, checked and ready to make batches.

    Args:
        name: one of `names()`.
        root: the folder that holds it, by default the variable DIFFSPARSE_DATA. The digits need none.
        augment: whether training images are changed at random, if the data set can do so.
        image_size: width and height of inputs made from image files, by default 224; CIFAR images are averaged to it.
        download: whether to download CIFAR if it is missing.
        network: the name of the network that will learn from it, for folders that hold data for several tasks.

    Example:
        >>> digits = open_data("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape, digits.num_outputs
        (1348, 449, (1, 8, 8), 10)
        >>> inputs, targets = next(digits.train.shuffled(64, seed=0, epoch=0))
        >>> inputs.shape, targets.shape
        (torch.Size([64, 1, 8, 8]), torch.Size([64]))
    """
    opener = DATA_SETS.find(name)
    return opener(
        DataRequest(name=name, root=root, augment=augment, image_size=image_size, download=download, network=network)
    )


def _digits(request: DataRequest) -> DataSet:
    digits = open_digits()
    request.check_size(digits.input_shape[-1])
    return digits


_CIFAR = {layout.name: layout for layout in (CIFAR10, CIFAR100)}


def _cifar(request: DataRequest) -> DataSet:
    layout = _CIFAR[request.name]
    return open_cifar(
        layout, request.folder(), augment=request.augment, fetch=request.download, size=request.image_size
    )


def _images(open_images: Callable[..., DataSet], request: DataRequest) -> DataSet:
    request.refuse_download()
    return open_images(request.folder(), augment=request.augment, image_size=request.image_size)


register_data("digits", _digits)
for _name in _CIFAR:
    register_data(_name, _cifar)
register_data("imagenet", partial(_images, open_imagenet))
register_data("folder", partial(_images, open_folder))
