from pathlib import Path

import pytest
import torch

from diffsparse import SparsityError
from diffsparse.data.dataset import Share
from diffsparse.text import open_plain_text, open_sentences
from diffsparse.text.data import WindowPart
from diffsparse.text.tokens import START, byte_tokens
from tests.text.files import write_both, write_plain, write_sentences


def test_sentences_have_three_parts(tmp_path: Path) -> None:
    data = open_sentences(write_both(tmp_path), length=24)
    assert (len(data.train), len(data.validation), len(data.test)) == (64, 16, 20)
    assert (data.input_shape, data.num_outputs, data.output_shape) == ((24,), 2, (2,))
    inputs, labels = next(data.test.in_order(20))
    assert inputs.dtype == labels.dtype == torch.int64
    assert inputs.shape == (20, 24)
    line, label = (tmp_path / "mood_test.tsv").read_text().splitlines()[3].split("\t")
    assert bytes(inputs[3].tolist()).rstrip(b"\0") == bytes([START]) + line.encode()[:23]
    assert labels[3] == int(label)
    assert data.summary().rows["validation"] == ("16", "2", "24", "8", "8")


def test_with_one_part_beside_the_training_that_is_the_test(tmp_path: Path) -> None:
    write_sentences(tmp_path / "train.tsv", 10)
    write_sentences(tmp_path / "dev.tsv", 6)
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tno label\n")
    data = open_sentences(tmp_path)
    assert data.validation is None
    assert len(data.test) == 6


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, r"text needs files of sentences and labels .* in '.*'; those there with labels: none"),
        ({"train": "a\t0\nb\t1"}, "needs files of sentences and labels"),
        ({"dev": "a\t0", "test": "a\t0"}, "needs files of sentences and labels"),
        ({"train": "a\t0\nb\t1", "dev": "a\t2"}, r"dev.tsv' has the label 2; labels to learn go from 0 to 1"),
        ({"train": "a\t0\nb\t0", "dev": "a\t0"}, r"has the label 0; labels to learn go from 0 to 0"),
    ],
)
def test_missing_parts_and_odd_labels_are_refused(tmp_path: Path, parts: dict[str, str], message: str) -> None:
    for part, content in parts.items():
        (tmp_path / f"{part}.tsv").write_text(content)
    with pytest.raises(SparsityError, match=message):
        open_sentences(tmp_path)


def test_the_end_of_a_plain_text_is_held_out(tmp_path: Path) -> None:
    write_plain(tmp_path / "a.txt", 4000)
    content = (tmp_path / "a.txt").read_bytes()
    data = open_plain_text(tmp_path, length=50)
    # 90 % are 3,600 bytes, of which the borders may move by up to 50; the others are 200 bytes each
    assert (len(data.train), len(data.validation), len(data.test)) == (71, 3, 3)
    assert (data.input_shape, data.output_shape) == ((50,), (50, 256))
    for part, begin in ((data.train, 0), (data.validation, 3600), (data.test, 3800)):
        inputs, targets = next(part.in_order(3))
        assert bytes(inputs[1].tolist()) == content[begin + 50 : begin + 100]
        assert bytes(targets[1].tolist()) == content[begin + 51 : begin + 101]
    assert data.summary().rows["test"] == ("3", "50", "150")


def test_borders_move_and_repeat_by_seed_and_epoch() -> None:
    part = WindowPart(tokens=byte_tokens(bytes(range(1, 201))), length=16, moves=True)

    def starts(seed: int, epoch: int, **options: object) -> list[int]:
        batches = part.shuffled(2, seed=seed, epoch=epoch, **options)
        return [int(start) for inputs, _ in batches for start in inputs[:, 0]]

    first = starts(0, 0)
    assert first == starts(0, 0)
    assert len({start % 16 for start in first}) == 1
    assert len({starts(0, epoch)[0] % 16 for epoch in range(12)}) > 3
    assert starts(0, 0, skip=2) == first[4:]
    halves = [starts(0, 0, share=Share(rank=rank, world=2)) for rank in (0, 1)]
    assert [start for pair in zip(*halves, strict=True) for start in pair] == first


def test_every_window_stays_inside_the_text() -> None:
    for size in range(8, 40):
        part = WindowPart(tokens=torch.arange(size, dtype=torch.uint8), length=4, moves=True)
        for epoch in range(12):
            for inputs, targets in part.shuffled(1, seed=size, epoch=epoch):
                assert torch.equal(inputs + 1, targets)


@pytest.mark.parametrize("content", [None, "", "short"])
def test_too_little_text_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_text(content)
    message = "have 5 bytes; about" if content else r"needs text files \(\*.txt\) in"
    with pytest.raises(SparsityError, match=message):
        open_plain_text(tmp_path)


def test_the_least_text_that_is_asked_for_is_enough(tmp_path: Path) -> None:
    write_plain(tmp_path / "a.txt", 20 * 17)
    assert len(open_plain_text(tmp_path, length=16).test) == 1
    write_plain(tmp_path / "a.txt", 20 * 17 - 1)
    with pytest.raises(SparsityError, match="are needed"):
        open_plain_text(tmp_path, length=16)


def test_examples_are_real_tokens(tmp_path: Path) -> None:
    data = open_sentences(write_both(tmp_path))
    assert data.example(2).shape == (2, 256)
    assert data.example(2).dtype == torch.int64
    assert (data.sample(5)[:, 0] == START).all()
    assert data.sample(1000).shape == (64, 256)
