"""Text as data sets: sentences to classify, and plain text whose next byte is predicted."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diffsparse.data.dataset import AUGMENTATION, Batch, DataSet, DataSummary, Draws, Part, Share, as_slice
from diffsparse.data.dataset import random_numbers as drawn
from diffsparse.errors import SparsityError, require_whole
from diffsparse.text.reading import PLAIN, Sentences, find_parts, read_plain, read_sentences
from diffsparse.text.tokens import VOCABULARY, byte_tokens, padded

SENTENCE_LENGTH = 256
WINDOW = 128
HELD_OUT = 0.05
"""Share of a plain text that is for validation, and as much again, the end, for testing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SentencePart(Part):
    """Sentences as padded tokens, and their classes."""

    tokens: Tensor
    """(N, length) uint8."""
    labels: Tensor
    """(N,) int64."""

    def __len__(self) -> int:
        return len(self.tokens)

    def make_batches(self, batches: list[range], order: Tensor, share: Share, drawn_by: Draws) -> Iterator[Batch]:
        for positions in batches:
            entries = order[as_slice(positions)]
            yield self.tokens[entries].long(), self.labels[entries]


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowPart(Part):
    """Pieces of a text, side by side; the target is the text one byte on.

    In training, the borders between pieces lie elsewhere in every epoch.

    Example:
        >>> part = WindowPart(tokens=byte_tokens(b"abcdefg"), length=3)
        >>> [(inputs.tolist(), targets.tolist()) for inputs, targets in part.in_order(1)]
        [([[97, 98, 99]], [[98, 99, 100]]), ([[100, 101, 102]], [[101, 102, 103]])]
    """

    tokens: Tensor
    """(bytes,) uint8."""
    length: int
    moves: bool = False
    """Whether borders move from epoch to epoch."""

    def __post_init__(self) -> None:
        require_whole("length", self.length, low=1)
        if len(self) < 1:
            raise SparsityError(f"{len(self.tokens)} bytes are too few for a piece of {self.length}")

    def __len__(self) -> int:
        spare = self.length if self.moves else 1
        return (len(self.tokens) - spare) // self.length

    def make_batches(self, batches: list[range], order: Tensor, share: Share, drawn_by: Draws) -> Iterator[Batch]:
        moved = 0
        if self.moves and drawn_by is not None:
            moved = int(drawn(*drawn_by, AUGMENTATION).integers(self.length))
        for positions in batches:
            starts = moved + self.length * order[as_slice(positions)]
            piece = self.tokens[starts.unsqueeze(1) + torch.arange(self.length + 1)].long()
            yield piece[:, :-1], piece[:, 1:]


@dataclass(frozen=True, kw_only=True, eq=False)
class TextDataSet(DataSet):
    """Inputs are tokens."""

    def example(self, count: int) -> Tensor:
        return self.sample(count)


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceData(TextDataSet):
    """Sentences with one label each."""

    task: str = "text-classification"

    def summary(self) -> DataSummary:
        """Sentences, classes and the longest sentence of each part."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return DataSummary(
            headings=("sentences", "classes", "bytes", "fewest per class", "most per class"),
            rows={
                name: (f"{len(part):,}", str(self.num_outputs), str(self.input_shape[0]), *self._class_sizes(part))
                for name, part in parts.items()
                if part is not None
            },
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainTextData(TextDataSet):
    """A text whose next byte is predicted at every position."""

    task: str = "language-modelling"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (*self.input_shape, self.num_outputs)

    def summary(self) -> DataSummary:
        """Pieces of each part."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        length = self.input_shape[0]
        return DataSummary(
            headings=("pieces", "bytes each", "bytes"),
            rows={
                name: (f"{len(part):,}", str(length), f"{length * len(part):,}")
                for name, part in parts.items()
                if part is not None
            },
        )


def open_sentences(root: Path, *, name: str = "text", length: int = SENTENCE_LENGTH) -> SentenceData:
    """Tab-separated files of sentences and labels in the folder `root`: a train part, and a dev or a test part.

    With both, the dev part is for validation. Sentences are cut to `length` bytes, a start token included.
    """
    require_whole("length", length, low=2)
    found = find_parts(root)
    read = {part: sentences for part, path in found.items() if (sentences := read_sentences(path)) is not None}
    if "train" not in read or len(read) < 2:
        there = ", ".join(path.name for path in found.values()) or "none"
        need = "files of sentences and labels whose names end with train.tsv and with dev.tsv or test.tsv"
        raise SparsityError(f"{name} needs {need} in '{root}'; those there with labels: {there}")
    classes = max(read["train"].labels) + 1
    for part, sentences in read.items():
        if (label := max(sentences.labels)) >= classes or classes < 2:
            raise SparsityError(f"'{found[part]}' has the label {label}; labels to learn go from 0 to {classes - 1}")
    parts = {part: _sentence_part(sentences, length) for part, sentences in read.items()}
    return SentenceData(
        name=name,
        train=parts["train"],
        validation=parts.get("dev") if "test" in parts else None,
        test=parts.get("test") or parts["dev"],
        input_shape=(length,),
        num_outputs=classes,
    )


def _sentence_part(sentences: Sentences, length: int) -> SentencePart:
    return SentencePart(tokens=padded(sentences.texts, length), labels=torch.tensor(sentences.labels))


def open_plain_text(root: Path, *, name: str = "text", length: int = WINDOW) -> PlainTextData:
    """All text files in the folder `root`, in pieces of `length` bytes: 90 % to train, 5 % to validate, 5 % to test."""
    tokens = byte_tokens(read_plain(root))
    if not len(tokens):
        raise SparsityError(f"{name} needs text files ({PLAIN}) in '{root}', and there are none, or they are empty")
    each = int(HELD_OUT * len(tokens))
    cuts = (len(tokens) - 2 * each, each, each)
    if each <= length or cuts[0] < 2 * length:
        least = int(length / HELD_OUT) + 2 * length
        raise SparsityError(f"the text files in '{root}' have {len(tokens):,} bytes; about {least:,} are needed")
    train, validation, test = torch.split_with_sizes(tokens, cuts)
    return PlainTextData(
        name=name,
        train=WindowPart(tokens=train, length=length, moves=True),
        validation=WindowPart(tokens=validation, length=length),
        test=WindowPart(tokens=test, length=length),
        input_shape=(length,),
        num_outputs=VOCABULARY,
    )
