import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffsparse import SparsityError
from diffsparse.data.folder import open_folder
from diffsparse.data.image_part import ImagePart, cores_each
from diffsparse.data.part import Share
from tests.data.fakes import write_images

# Python 3.12 warns of what DataLoader does by default
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def part(tmp_path: Path) -> ImagePart:
    write_images(tmp_path / "train", {"a": 6, "b": 4}, size=(8, 8))
    write_images(tmp_path / "val", {"a": 1, "b": 1}, size=(8, 8))
    part = open_folder(tmp_path, image_size=7).train
    assert isinstance(part, ImagePart)
    return part


def test_inputs_are_the_images_normalised(part: ImagePart) -> None:
    # 7 of 8 pixels are the middle: half a pixel off on every side, so bilinear means of neighbours
    ((inputs, labels),) = replace(part, workers=0).in_order(10)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    for image, path in zip(inputs, part.files, strict=True):
        pixels = np.asarray(Image.open(path)).astype(float)
        middle = (pixels[:-1, :-1] + pixels[1:, :-1] + pixels[:-1, 1:] + pixels[1:, 1:]) / 4
        expected = (middle / 255 - mean) / std
        assert np.abs(image.numpy().transpose(1, 2, 0) - expected).max() < 1.6 / 255 / 0.22
    assert labels.tolist() == [0] * 6 + [1] * 4


def test_without_augmentation_epochs_show_the_same_images(part: ImagePart) -> None:
    plain = replace(part, augment=False, workers=0)
    ((shuffled, _),) = plain.shuffled(10, seed=0, epoch=0)
    ((inputs, _),) = plain.in_order(10)
    assert torch.equal(shuffled.flatten(1).sort(0).values, inputs.flatten(1).sort(0).values)


def test_every_position_has_a_crop_of_its_own(part: ImagePart) -> None:
    copies = replace(part, files=part.files[:1] * 10, workers=0)
    ((inputs, _),) = copies.shuffled(10, seed=0, epoch=0)
    assert len(inputs.flatten(1).unique(dim=0)) == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_one_sentence_even_from_a_worker(part: ImagePart, workers: int) -> None:
    Path(part.files[7]).write_bytes(b"no image")
    with pytest.raises(SparsityError) as raised:
        list(replace(part, workers=workers).in_order(2))
    assert str(raised.value).startswith(f"cannot read the image {part.files[7]}: cannot identify")
    assert "Traceback" not in str(raised.value)


def test_stopping_early_ends_the_workers(part: ImagePart) -> None:
    before = set(multiprocessing.active_children())
    batches = replace(part, workers=2).shuffled(1, seed=0, epoch=0)
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 2
    batches.close()
    deadline = time.monotonic() + 10
    while set(multiprocessing.active_children()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(multiprocessing.active_children()) == before


def test_a_share_that_gets_nothing_is_empty(part: ImagePart) -> None:
    one = replace(part, files=part.files[:1], labels=part.labels[:1])
    assert list(one.in_order(2, share=Share(rank=1, world=2))) == []


def test_cores_are_shared_by_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert cores_each(Share()) == 12
    assert cores_each(Share(world=4)) == 3
    assert cores_each(Share(world=100)) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores_each(Share(world=100)) == 6
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(200)))
    assert cores_each(Share()) == 16
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores_each(Share()) == 3


@pytest.mark.parametrize(("field", "value"), [("size", 0), ("workers", -1)])
def test_impossible_numbers_are_refused(part: ImagePart, field: str, value: int) -> None:
    with pytest.raises(SparsityError, match=f"must be a whole number .* got {value}"):
        replace(part, **{field: value})
