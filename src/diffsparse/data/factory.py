"""Data sets by name."""

import os
from pathlib import Path

from diffsparse.data.cifar import CIFAR10, CIFAR100, SHAPE, open_cifar
from diffsparse.data.dataset import DataSet
from diffsparse.data.digits import open_digits
from diffsparse.data.folder import open_folder, open_imagenet
from diffsparse.data.traffic import TRAFFIC_NAMES, open_traffic
from diffsparse.data.traffic.open import SYNTHETIC
from diffsparse.errors import SparsityError

ROOT_VARIABLE = "DIFFSPARSE_DATA"

_CIFAR = {layout.name: layout for layout in (CIFAR10, CIFAR100)}
_FOLDERS = {"imagenet": open_imagenet, "folder": open_folder}


def names() -> tuple[str, ...]:
    """The names that `open_data` knows.

    Example:
        >>> names()[:5]
        ('digits', 'cifar10', 'cifar100', 'imagenet', 'folder')
    """
    return ("digits", *_CIFAR, *_FOLDERS, *TRAFFIC_NAMES)


def open_data(
    name: str,
    *,
    root: Path | None = None,
    augment: bool = True,
    image_size: int | None = None,
    download: bool = False,
) -> DataSet:
    """The data set called `name`, checked and ready to make batches.

    Args:
        name: One of `names()`.
        root: The folder it lies in; by default the variable DIFFSPARSE_DATA says it. The digits need none.
        augment: Whether training images are changed at random, where the data set has a way to.
        image_size: Width and height of inputs that are made from image files, by default 224.
        download: Whether to fetch CIFAR if it is not there.

    Example:
        >>> digits = open_data("digits")
        >>> len(digits.train), len(digits.test), digits.input_shape, digits.num_outputs
        (1348, 449, (1, 8, 8), 10)
        >>> inputs, targets = next(digits.train.shuffled(64, seed=0, epoch=0))
        >>> inputs.shape, targets.shape
        (torch.Size([64, 1, 8, 8]), torch.Size([64]))
    """
    if name == "digits":
        digits = open_digits()
        _check_size(name, image_size, digits.input_shape[-1])
        return digits
    if name in _CIFAR:
        _check_size(name, image_size, SHAPE[-1])
        return open_cifar(_CIFAR[name], _root(name, root, download), augment=augment, fetch=download)
    if name in _FOLDERS:
        if download:
            raise SparsityError(f"{name} cannot be downloaded: put its images under the data root by hand")
        return _FOLDERS[name](_root(name, root, download), augment=augment, image_size=image_size)
    if name in TRAFFIC_NAMES:
        if download:
            raise SparsityError(f"{name} cannot be downloaded: put its files under the data root by hand")
        if image_size is not None:
            raise SparsityError(f"{name} has no images, got image_size {image_size}")
        return open_traffic(name, None if name == SYNTHETIC else _root(name, root, download))
    raise SparsityError(f"there is no data set {name!r}; there are {', '.join(names())}")


def _root(name: str, given: Path | None, download: bool) -> Path:
    named = os.environ.get(ROOT_VARIABLE)
    if given is None and not named:
        raise SparsityError(f"{name} needs the folder that it lies in: give a root or set {ROOT_VARIABLE}")
    root = Path(named or "") if given is None else Path(given)
    if root.exists() and not root.is_dir():
        raise SparsityError(f"the data root {root} must be a folder, but is a file")
    if not root.exists() and not download:
        raise SparsityError(f"the data root {root} does not exist")
    return root


def _check_size(name: str, image_size: int | None, own: int) -> None:
    if image_size not in (None, own):
        raise SparsityError(f"the images of {name} are {own} x {own}, got image_size {image_size}")
