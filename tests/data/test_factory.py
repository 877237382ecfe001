from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.data import DataSet, names, open_data
from tests.data.fakes import SMALL10, SMALL100, write_cifar, write_images


@pytest.fixture(autouse=True)
def _small_and_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIFFSPARSE_DATA", raising=False)
    monkeypatch.setattr("diffsparse.data.factory._CIFAR", {"cifar10": SMALL10, "cifar100": SMALL100})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Every data set that lies in a root."""
    write_cifar(SMALL10, tmp_path)
    write_cifar(SMALL100, tmp_path)
    for folder in (tmp_path / "imagenet", tmp_path):
        write_images(folder / "train", {"n00000001": 2})
        write_images(folder / "val", {"n00000001": 1})
    return tmp_path


@pytest.mark.parametrize("name", names())
def test_every_name_opens_the_data_set_of_that_name(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data(name, root=root)
    assert isinstance(data, DataSet)
    assert data.name == name
    monkeypatch.setenv("DIFFSPARSE_DATA", str(root))
    assert open_data(name).name == name


def test_a_root_given_comes_before_the_variable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFSPARSE_DATA", "/nowhere")
    assert len(open_data("cifar10", root=root).train) == 30


@pytest.mark.parametrize("name", names())
def test_only_the_digits_need_no_root(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        if value is not None:
            monkeypatch.setenv("DIFFSPARSE_DATA", value)
        if name == "digits":
            assert len(open_data(name).train) == 1348
        else:
            with pytest.raises(SparsityError, match=f"{name} needs the folder .* give a root or set DIFFSPARSE_DATA"):
                open_data(name)


def test_wishes_reach_the_data_set(root: Path) -> None:
    assert open_data("imagenet", root=root, image_size=32).input_shape == (3, 32, 32)
    assert open_data("imagenet", root=root, augment=False).train.augment is False
    assert open_data("cifar10", root=root, augment=False).train.augmentation is None
    assert open_data("cifar10", root=root).train.augmentation is not None
    assert open_data("cifar10", root=root, image_size=32).input_shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "wishes", "message"),
    [
        ("mnist", {}, "there is no data set 'mnist'; there are digits, cifar10, cifar100, imagenet, folder"),
        ("digits", {"image_size": 16}, "images of digits are 8 x 8, got image_size 16"),
        ("cifar100", {"image_size": 224}, "images of cifar100 are 32 x 32, got image_size 224"),
        ("folder", {"image_size": 0}, "image_size must be a whole number of at least 1, got 0"),
        ("imagenet", {"download": True}, "imagenet cannot be downloaded"),
        ("folder", {"download": True}, "folder cannot be downloaded"),
        ("cifar10", {"root": Path("/nowhere")}, "data root /nowhere does not exist"),
        ("folder", {"root": Path(__file__)}, r"test_factory\.py must be a folder, but is a file"),
        ("cifar10", {"root": Path(__file__), "download": True}, "must be a folder, but is a file"),
    ],
)
def test_impossible_wishes_are_refused(name: str, wishes: dict[str, object], message: str, root: Path) -> None:
    with pytest.raises(SparsityError, match=message):
        open_data(name, **{"root": root, **wishes})
