"""Made text files."""

import random
from pathlib import Path

WORDS = {0: ["bad", "dull", "poor", "grim"], 1: ["good", "bright", "fine", "glad"]}


def write_sentences(path: Path, count: int, seed: int = 0) -> None:
    """Lines of a few words and a label that the words give away."""
    draw = random.Random(seed)
    lines = [f"{' '.join(draw.choices(WORDS[label], k=4))}\t{label}" for label in (n % 2 for n in range(count))]
    path.write_text("\n".join(lines) + "\n")


def write_plain(path: Path, size: int = 8000, seed: int = 0) -> None:
    """Words in random order."""
    draw = random.Random(seed)
    words = WORDS[0] + WORDS[1]
    path.write_text(" ".join(draw.choices(words, k=size))[:size])


def write_both(folder: Path) -> Path:
    """Sentences of three parts, and plain text."""
    for seed, (part, count) in enumerate({"train": 64, "dev": 16, "test": 20}.items()):
        write_sentences(folder / f"mood_{part}.tsv", count, seed)
    write_plain(folder / "words.txt")
    return folder
