"""Files of text: sentences with labels, one per line, and plain text."""

import re
from dataclasses import dataclass
from pathlib import Path

from diffsparse.errors import SparsityError

PARTS = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}
"""Words in the names of tab-separated files, and the part that each of them means."""
_PART = re.compile(rf"(?:.*[-_.])?({'|'.join(PARTS)})\.tsv", re.IGNORECASE)
PLAIN = "*.txt"


@dataclass(frozen=True)
class Sentences:
    """Texts and the class of each."""

    texts: list[bytes]
    labels: list[int]


def find_parts(folder: Path) -> dict[str, Path]:
    """The tab-separated files "train", "dev" and "test" in `folder`, as far as there are any.

    A name ends with that word, alone or behind a dash, underscore or dot: train.tsv, sst2_train.tsv. "val", "valid" and
    "validation" mean "dev".
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.tsv")):
        if match := _PART.fullmatch(path.name):
            part = PARTS[match[1].lower()]
            if (other := found.setdefault(part, path)) != path:
                raise SparsityError(f"'{other}' and '{path}' could both be the {part} part; leave one in the folder")
    return found


def read_sentences(path: Path) -> Sentences | None:
    """Lines of sentence, tab, label; None if the file has sentences without labels, as the test part of GLUE.

    A first line "sentence, tab, label" is a heading. An error names the line.
    """
    lines = _content(path).decode("utf-8-sig", "surrogateescape").splitlines()
    if lines and lines[0].lower().split("\t") == ["index", "sentence"]:
        return None
    first = 1 if lines and lines[0].lower().split("\t")[-1] == "label" else 0
    texts, labels = [], []
    for number, line in enumerate(lines[first:], first + 1):
        if not line.strip():
            continue
        text, tab, label = line.rpartition("\t")
        if not tab:
            raise SparsityError(f"'{path}', line {number}: there is no tab between sentence and label")
        if not label.strip().isdecimal():
            raise SparsityError(f"'{path}', line {number}: the label {label!r:.40} is not a whole number from 0 on")
        texts.append(text.encode("utf-8", "surrogateescape"))
        labels.append(int(label))
    if not texts:
        raise SparsityError(f"'{path}' holds no sentences; a line is a sentence, a tab and a label")
    return Sentences(texts, labels)


def read_plain(folder: Path) -> bytes:
    """All text files of `folder` in the order of their names, one behind the other; empty if there are none."""
    return b"".join(_content(path) for path in sorted(folder.glob(PLAIN)))


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SparsityError(f"cannot read '{path}': {error.strerror}") from error
    if b"\0" in content:
        raise SparsityError(f"'{path}' is not text in UTF-8 or another encoding of bytes: it contains the byte 0")
    return content
