import math
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from diffsparse import SparsityError
from diffsparse.data.dataset import Share
from diffsparse.data.image_folder import (
    ImagePart,
    centre_box,
    cores_per_process,
    open_folder,
    pillow,
    random_box,
    read_image,
)
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
    assert cores_per_process(Share()) == 12
    assert cores_per_process(Share(world=4)) == 3
    assert cores_per_process(Share(world=100)) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores_per_process(Share(world=100)) == 6
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(200)))
    assert cores_per_process(Share()) == 16
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores_per_process(Share()) == 3


@pytest.mark.parametrize(("field", "value"), [("size", 0), ("workers", -1)])
def test_impossible_numbers_are_refused(part: ImagePart, field: str, value: int) -> None:
    with pytest.raises(SparsityError, match=f"must be a whole number .* got {value}"):
        replace(part, **{field: value})


RANDOM = np.random.default_rng(0)
# smooth, so that a pixel more or less changes little
WAVES = np.stack(
    [127 + 120 * np.sin(np.add.outer(np.arange(60) / a, np.arange(90) / b)) for a, b in ((9, 7), (6, 11), (8, 8))]
)


def saved(pixels: np.ndarray, path: Path, mode: str | None = None) -> str:
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path)
    return str(path)


@pytest.mark.parametrize("size", [14, 56])
def test_the_middle_is_that_of_resizing_and_then_cropping(size: int, tmp_path: Path) -> None:
    pixels = WAVES.transpose(1, 2, 0).astype(np.uint8)
    path = saved(pixels, tmp_path / "waves.png")
    short = round(size * 256 / 224)
    scaled = np.asarray(Image.fromarray(pixels).resize((round(90 * short / 60), short), Image.Resampling.BILINEAR))
    top, left = (scaled.shape[0] - size) // 2, (scaled.shape[1] - size) // 2
    expected = scaled[top : top + size, left : left + size].transpose(2, 0, 1).astype(float)
    found = read_image(path, size, None)
    assert found.dtype == torch.uint8
    difference = np.abs(found.numpy() - expected)
    assert difference.mean() < 3
    # the check can tell places apart: a few pixels further it is another picture
    assert np.abs(np.roll(found.numpy(), size // 5, axis=2) - expected).mean() > 12


def scaled(pixels: np.ndarray, begin: float, end: float, size: int) -> np.ndarray:
    """The part of the first axis from `begin` to `end`, each output the mean of inputs under a triangle around it."""
    step = (end - begin) / size
    width = max(step, 1.0)
    rows = []
    for number in range(size):
        distance = np.abs(np.arange(len(pixels)) + 0.5 - (begin + (number + 0.5) * step))
        weights = np.maximum(0, 1 - distance / width)
        rows.append(np.tensordot(weights / weights.sum(), pixels, axes=1))
    return np.stack(rows)


@pytest.mark.parametrize("number", range(12))
def test_a_random_crop_is_cut_scaled_and_maybe_mirrored(number: int, tmp_path: Path) -> None:
    pixels = RANDOM.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    path = saved(pixels, tmp_path / "image.png")
    found = read_image(path, 8, np.random.default_rng(number)).numpy().transpose(1, 2, 0)
    random = np.random.default_rng(number)
    left, top, right, bottom = random_box(40, 30, random)
    columns = scaled(scaled(pixels, top, bottom, 8).swapaxes(0, 1), left, right, 8)
    expected = columns.swapaxes(0, 1)
    if random.random() < 0.5:
        expected = expected[:, ::-1]
    assert np.abs(found - expected).max() < 1.5


def test_half_of_the_random_crops_are_mirrored(tmp_path: Path) -> None:
    # brighter to the right, wherever it is cut
    path = saved(np.tile(np.linspace(0, 255, 40).astype(np.uint8)[None, :, None], (30, 1, 3)), tmp_path / "image.png")
    images = [read_image(path, 4, np.random.default_rng(number)).int() for number in range(300)]
    mirrored = sum(bool(image[0, 0, 0] > image[0, 0, -1]) for image in images)
    assert 110 < mirrored < 190


@settings(max_examples=200, deadline=None)
@given(width=st.integers(1, 600), height=st.integers(1, 600), seed=st.integers(0, 2**32))
def test_random_boxes_lie_in_the_image(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_box(width, height, np.random.default_rng(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    left, top, right, bottom = centre_box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert right - left == pytest.approx(bottom - top)


def test_random_boxes_have_every_area_and_ratio() -> None:
    random = np.random.default_rng(0)
    boxes = np.array([random_box(400, 400, random) for _ in range(2000)])
    across, down = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas, ratios = across * down / 400**2, np.log(across / down)
    assert 0.078 < areas.min() < 0.1
    assert 0.9 < areas.max() <= 1
    # uniform as far as every ratio fits in; larger areas of a long shape are drawn again
    assert abs(areas[areas < 0.75].mean() - (0.08 + 0.75) / 2) < 0.02
    assert abs(ratios.mean()) < 0.02
    assert abs(ratios).max() == pytest.approx(math.log(4 / 3), abs=0.02)
    assert boxes[:, 0].min() == 0
    assert boxes[:, 2].max() == 400


@pytest.mark.parametrize(("width", "height", "ratio"), [(1000, 10, 4 / 3), (10, 1000, 3 / 4)])
def test_a_very_long_image_is_cut_in_the_middle(width: int, height: int, ratio: float) -> None:
    # areas of at least 8 % with these ratios are larger than the short side
    left, top, right, bottom = random_box(width, height, np.random.default_rng(0))
    assert (right - left) / (bottom - top) == pytest.approx(ratio, rel=0.05)
    assert min(right - left, bottom - top) == 10
    assert abs(left + right - width) <= 1
    assert abs(top + bottom - height) <= 1


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "RGBA", "CMYK"])
def test_every_kind_of_image_becomes_rgb(mode: str, tmp_path: Path) -> None:
    pixels = np.full((16, 16, 3), 255, dtype=np.uint8)
    path = saved(pixels, tmp_path / ("image.tif" if mode == "CMYK" else "image.png"), mode)
    found = read_image(path, 8, None)
    assert found.shape == (3, 8, 8)
    assert (found == 255).all()


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    image = Image.fromarray(RANDOM.integers(0, 256, (16, 16, 3), dtype=np.uint8)).convert("P")
    image.save(tmp_path / "image.png", transparency=bytes(range(20)))
    assert read_image(str(tmp_path / "image.png"), 8, None).shape == (3, 8, 8)


def test_sixteen_bits_keep_their_contrast(tmp_path: Path) -> None:
    path = saved(np.full((16, 16), 40_000, dtype=np.uint16), tmp_path / "image.png")
    assert (read_image(path, 8, None) == 40_000 // 256).all()


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    path = saved(np.ones((16, 16), dtype=np.float32), tmp_path / "image.tif")
    with pytest.raises(SparsityError, match=r"cannot read the image .*image\.tif: it has 32 bits per pixel"):
        read_image(path, 8, None)


@pytest.mark.parametrize("damage", ["text", "empty", "half", "missing"])
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_a_damaged_image_is_named(damage: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"image.{ending}"
    saved(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8), path)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"text": b"<html>not found</html>", "empty": b"", "half": content[: len(content) // 2]}[damage]
        )
    with pytest.raises(SparsityError, match=rf"cannot read the image {path}: \w+"):
        read_image(str(path), 8, None)


def test_missing_pillow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SparsityError, match="pip install pillow"):
        pillow()
