"""The code blocks of README and the guides."""

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block."""

    page: str
    number: int
    """Its place among the blocks of its language on the page, from 0."""
    language: str
    text: str
    prints: str | None = None
    """For Python: the block of text right behind it, which is what it prints."""


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    text = PAGES[page].read_text()
    found: list[Block] = []
    counts: dict[str, int] = {}
    matches = list(_FENCE.finditer(text))
    for match, following in itertools.zip_longest(matches, matches[1:]):
        language, prints = match[1], None
        number = counts.setdefault(language, 0)
        counts[language] += 1
        if language == "python" and following and following[1] == "text":
            between = text[match.end() : following.start()]
            prints = following[2] if not between.strip() else None
        found.append(Block(page=page, number=number, language=language, text=match[2], prints=prints))
    return found


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block as words; a line that ends with a backslash goes on in the next."""
    joined = text.replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in joined.splitlines()]
    return [words for words in lines if words]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
