import sys
from pathlib import Path

import pytest

from diffsparse import SparsityError
from diffsparse.data import DataSet, Labelled
from diffsparse.data.image_folder import open_folder, open_imagenet
from tests.data.fakes import write_images


def labels(data: DataSet, part: str) -> list[int]:
    found = getattr(data, part)
    assert isinstance(found, Labelled)
    return found.labels.tolist()


def test_classes_are_the_folders_by_name(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"dog": 3, "cat": 2}, ending="PNG")
    write_images(tmp_path / "test", {"dog": 1, "cat": 2}, ending="jpeg")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "notes.txt").write_text("no class")
    (tmp_path / "train" / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "dog" / "._0.png").write_text("no image")
    data = open_folder(tmp_path, image_size=16)
    assert data.classes == ("cat", "dog")
    assert labels(data, "train") == [0, 0, 1, 1, 1]
    assert labels(data, "test") == [0, 0, 1]
    assert (data.name, data.num_outputs, data.input_shape, data.validation) == ("folder", 2, (3, 16, 16), None)


def test_val_is_the_test_part_or_beside_it_for_validation(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"a": 1})
    write_images(tmp_path / "val", {"a": 2})
    assert len(open_folder(tmp_path).test) == 2
    write_images(tmp_path / "test", {"a": 3})
    data = open_folder(tmp_path)
    assert len(data.test) == 3
    assert data.validation is not None
    assert len(data.validation) == 2
    assert data.input_shape == (3, 224, 224)


def write_imagenet(folder: Path) -> None:
    write_images(folder / "train", {"n01443537": 2, "n01440764": 3}, ending="JPEG")
    write_images(folder / "val", {"n01443537": 1, "n01440764": 1}, ending="JPEG")


@pytest.mark.parametrize("below", ["", "imagenet"])
def test_imagenet_lies_in_the_root_or_below(below: str, tmp_path: Path) -> None:
    write_imagenet(tmp_path / below)
    data = open_imagenet(tmp_path)
    assert data.classes == ("n01440764", "n01443537")
    assert labels(data, "train") == [0, 0, 0, 1, 1]
    assert (data.name, data.input_shape, data.validation) == ("imagenet", (3, 224, 224), None)


def test_folders_that_are_no_classes_of_imagenet_are_named(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    for part in ("train", "val"):
        (tmp_path / part / "n01443537").rename(tmp_path / part / "goldfish")
    with pytest.raises(SparsityError, match=r"train/goldfish must be named like n01440764"):
        open_imagenet(tmp_path)


def test_images_of_imagenet_that_are_not_sorted_into_classes(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    for folder in (tmp_path / "val").iterdir():
        for image in folder.iterdir():
            image.rename(tmp_path / "val" / f"{folder.name}{image.name}")
        folder.rmdir()
    with pytest.raises(SparsityError, match=r"val must hold one folder .* per class, but holds n014407640\.JPEG"):
        open_imagenet(tmp_path)


@pytest.mark.parametrize("missing", ["train", "val"])
def test_imagenet_without_a_part_says_what_is_there(missing: str, tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    (tmp_path / missing).rename(tmp_path / "other")
    with pytest.raises(SparsityError, match=r"must hold ImageNet's folders train and val, but holds .*other"):
        open_imagenet(tmp_path)


def test_a_root_without_parts_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(SparsityError, match=r"must hold the folders train and test \(or val\), but holds nothing"):
        open_folder(tmp_path)
    for name in ("a", "b", "c", "d", "train"):
        (tmp_path / name).mkdir()
    with pytest.raises(SparsityError, match="but holds a, b, c and 2 more"):
        open_folder(tmp_path)


def test_a_part_without_classes_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"a": 1})
    (tmp_path / "test").mkdir()
    with pytest.raises(SparsityError, match="test must hold one folder of images per class, but holds nothing"):
        open_folder(tmp_path)


def test_different_classes_are_named(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"a": 1, "b": 1, "d": 1})
    write_images(tmp_path / "test", {"a": 1, "c": 1})
    with pytest.raises(SparsityError, match="must hold the same classes: only train has b, d, only test has c"):
        open_folder(tmp_path)


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"a": 1, "b": 0})
    write_images(tmp_path / "test", {"a": 1, "b": 1})
    with pytest.raises(SparsityError, match=r"train/b must hold images \(.*\.png.*\), but holds nothing"):
        open_folder(tmp_path)
    (tmp_path / "train" / "b" / "x.txt").write_text("no image")
    with pytest.raises(SparsityError, match=r"train/b must hold images .*, but holds x\.txt"):
        open_folder(tmp_path)


def test_augmentation_can_be_left_out(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"a": 1})
    write_images(tmp_path / "test", {"a": 1})
    assert open_folder(tmp_path).train.augment is True
    assert open_folder(tmp_path, augment=False).train.augment is False


def test_missing_pillow_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_imagenet(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SparsityError, match="pip install pillow"):
        open_imagenet(tmp_path)
