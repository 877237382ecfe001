import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import datasets

from diffsparse import SparsityError
from diffsparse.data.small_images import CIFAR10, CIFAR100, Layout, open_cifar, open_digits
from diffsparse.data.tensor_part import TensorPart
from tests.data.conftest import Server
from tests.data.fakes import SMALL10, SMALL100, cifar_files, packed_cifar, write_cifar

BOTH = pytest.mark.parametrize("layout", [SMALL10, SMALL100], ids=["10", "100"])


def slowly(content: bytes, labels: int) -> tuple[list[int], np.ndarray]:
    """Classes and images byte by byte, as the authors describe the records."""
    classes, images, length = [], [], labels + 3072
    for start in range(0, len(content), length):
        record = content[start : start + length]
        classes.append(record[labels - 1])
        image = np.zeros((3, 32, 32), dtype=np.uint8)
        for channel in range(3):
            for row in range(32):
                begin = labels + channel * 1024 + row * 32
                image[channel, row] = list(record[begin : begin + 32])
        images.append(image)
    return classes, np.stack(images)


@BOTH
def test_reads_what_the_files_hold(layout: Layout, tmp_path: Path) -> None:
    write_cifar(layout, tmp_path)
    data = open_cifar(layout, tmp_path)
    files = cifar_files(layout)
    assert isinstance(data.train, TensorPart)
    assert isinstance(data.test, TensorPart)
    sources = {data.train: layout.train_files, data.test: (layout.test_file,)}
    for part, names in sources.items():
        read = [slowly(files[name], len(layout.label_values)) for name in names]
        assert part.labels.tolist() == [label for classes, _ in read for label in classes]
        assert np.array_equal(part.images.numpy(), np.concatenate([images for _, images in read]))
    assert data.classes == tuple(f"class{number}" for number in range(layout.label_values[-1]))
    assert (data.name, data.num_outputs, data.input_shape) == (layout.name, layout.label_values[-1], (3, 32, 32))


@BOTH
def test_training_statistics_normalise_both_parts(layout: Layout, tmp_path: Path) -> None:
    write_cifar(layout, tmp_path)
    data = open_cifar(layout, tmp_path)
    assert isinstance(data.train, TensorPart)
    ((inputs, _),) = data.train.in_order(len(data.train))
    assert torch.allclose(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(inputs.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)
    assert isinstance(data.test, TensorPart)
    assert data.test.normalisation == data.train.normalisation


@BOTH
def test_images_are_averaged_to_a_smaller_size(layout: Layout, tmp_path: Path) -> None:
    write_cifar(layout, tmp_path)
    whole, small = open_cifar(layout, tmp_path), open_cifar(layout, tmp_path, size=8)
    assert small.input_shape == (3, 8, 8)
    for before, after in ((whole.train, small.train), (whole.test, small.test)):
        assert isinstance(before, TensorPart)
        assert isinstance(after, TensorPart)
        for i, row, column in ((0, 0, 0), (3, 2, 7), (5, 7, 1)):
            block = before.images[i, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].double()
            assert torch.allclose(after.images[i, :, row, column].double(), block.mean((1, 2)))
        assert torch.equal(before.labels, after.labels)
    assert isinstance(small.train, TensorPart)
    assert small.train.augmentation is not None
    assert small.train.augmentation.pad == 1


def test_augments_only_if_asked(tmp_path: Path) -> None:
    write_cifar(SMALL10, tmp_path)
    for augment in (True, False):
        train = open_cifar(SMALL10, tmp_path, augment=augment).train
        ((inputs, _),) = train.shuffled(30, seed=0, epoch=0)
        ((plain, _),) = train.in_order(30)
        assert torch.equal(inputs.flatten(1).sort(0).values, plain.flatten(1).sort(0).values) is not augment


@BOTH
def test_a_wrong_size_names_the_file_and_both_sizes(layout: Layout, tmp_path: Path) -> None:
    folder = write_cifar(layout, tmp_path)
    path = folder / layout.train_files[-1]
    path.write_bytes(path.read_bytes()[:-1])
    length = 3072 + len(layout.label_values)
    expected = layout.train_records * length
    with pytest.raises(SparsityError) as raised:
        open_cifar(layout, tmp_path)
    assert str(raised.value) == (
        f"{path} must have {expected:,} bytes ({layout.train_records} records of {length:,}), but has {expected - 1:,}"
    )


@pytest.mark.parametrize(
    ("layout", "byte", "value", "most"),
    [(SMALL10, 0, 10, 9), (SMALL100, 0, 20, 19), (SMALL100, 1, 100, 99), (SMALL100, 1, 255, 99)],
)
def test_a_wrong_label_names_the_file_and_the_record(
    layout: Layout, byte: int, value: int, most: int, tmp_path: Path
) -> None:
    path = write_cifar(layout, tmp_path) / layout.test_file
    content = bytearray(path.read_bytes())
    content[7 * (3072 + len(layout.label_values)) + byte] = value
    path.write_bytes(content)
    with pytest.raises(SparsityError) as raised:
        open_cifar(layout, tmp_path)
    expected = f"{path} has the label {value} in record 7, counted from 0; expected 0 to {most}"
    assert str(raised.value) == expected


@pytest.mark.parametrize("name", [*SMALL10.train_files, SMALL10.test_file, SMALL10.names_file])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    path = write_cifar(SMALL10, tmp_path) / name
    path.unlink()
    with pytest.raises(SparsityError, match=r"cannot read .*No such file") as raised:
        open_cifar(SMALL10, tmp_path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(("content", "found"), [(b"cat\ndog\n", "names 2"), (b"\xff\xfe", "codec can't decode")])
def test_wrong_names_are_refused(content: bytes, found: str, tmp_path: Path) -> None:
    path = write_cifar(SMALL10, tmp_path) / SMALL10.names_file
    path.write_bytes(content)
    with pytest.raises(SparsityError, match=rf"{SMALL10.names_file}.*{found}"):
        open_cifar(SMALL10, tmp_path)


@BOTH
def test_unpacks_an_archive_put_there_by_hand(layout: Layout, tmp_path: Path) -> None:
    layout, content = packed_cifar(layout)
    (tmp_path / layout.archive.name).write_bytes(content)
    assert len(open_cifar(layout, tmp_path).test) == layout.test_records


def test_downloads_unpacks_and_then_needs_no_network(server: Server, tmp_path: Path) -> None:
    layout, server.files["/set.tar.gz"] = packed_cifar(SMALL10)
    layout = replace(layout, url=f"{server.url}/set.tar.gz")
    assert len(open_cifar(layout, tmp_path / "new", fetch=True).train) == 30
    server.files.clear()
    assert len(open_cifar(layout, tmp_path / "new", fetch=True).train) == 30
    assert len(open_cifar(layout, tmp_path / "new" / layout.folder).train) == 30


def test_the_real_sizes_are_those_of_the_official_archives() -> None:
    assert len(CIFAR10.train_files) * CIFAR10.train_records == CIFAR100.train_records == 50_000
    assert CIFAR10.test_records == CIFAR100.test_records == 10_000
    assert CIFAR10.archive.name == "cifar-10-binary.tar.gz"
    assert CIFAR100.archive.name == "cifar-100-binary.tar.gz"


def test_missing_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SparsityError, match="pip install scikit-learn"):
        open_digits()


def test_the_data_set_is_complete_disjoint_and_normalised() -> None:
    digits = open_digits()
    assert (len(digits.train), len(digits.test), digits.input_shape) == (1348, 449, (1, 8, 8))
    ((inputs, targets),) = digits.train.in_order(1348)
    assert abs(inputs.mean()) < 1e-5
    assert abs(inputs.std() - 1) < 1e-3
    assert torch.equal(targets, digits.train.labels)
    # together they are what scikit-learn carries, every image once
    images = torch.cat([digits.train.images, digits.test.images]).flatten(1)
    labels = torch.cat([digits.train.labels, digits.test.labels])
    found = sorted((*image, label) for image, label in zip(images.tolist(), labels.tolist(), strict=True))
    bunch = datasets.load_digits()
    assert found == sorted((*image, label) for image, label in zip(bunch.data, bunch.target, strict=True))
    assert digits.classes == tuple(str(digit) for digit in range(digits.num_outputs))


def test_training_images_are_not_augmented() -> None:
    train = open_digits().train
    ((inputs, _),) = train.shuffled(len(train), seed=0, epoch=0)
    ((plain, _),) = train.in_order(len(train))
    assert torch.equal(inputs.flatten(1).sort(0).values, plain.flatten(1).sort(0).values)
