"""Build the site: collect README, guides and the API reference as pages for Sphinx, and let it check every link.

    python docs/site/build.py        # writes docs/_build/html

The Markdown files stay where a code host shows them; only links between them are rewritten on the way.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "docs" / "_build"
PLACES = {
    "Start": ("budget", "transformers", "compaction", "integrations", "training", "report", "speed"),
    "Understand": ("maths", "paper", "strength", "wiring", "graphs", "benchmarks", "gallery"),
    "Look up": ("api", "reference", "architecture", "CONTRIBUTING", "CHANGELOG"),
}
"""Guides by the heading of the menu that they stand under; those that are not there are left out."""
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def collect(source: Path) -> None:
    """Put all pages into the folder `source`."""
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    texts = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
    texts |= {name: (ROOT / name).read_text() for name in ("CONTRIBUTING.md", "CHANGELOG.md")}
    texts |= reference.pages()
    texts["index.md"] = (ROOT / "README.md").read_text() + _menu(set(texts))
    for name, text in texts.items():
        folder = ROOT / "docs" if (ROOT / "docs" / name).exists() else ROOT
        (source / name).write_text(LINK.sub(lambda link, folder=folder: _moved(link, folder, source), text))
    shutil.copy(Path(__file__).parent / "conf.py", source)


def _moved(link: re.Match[str], folder: Path, source: Path) -> str:
    """A link of a page in `folder` as it is on the site, where all pages lie together; files it leads to are copied."""
    text, target, anchor = link[1], (folder / link[2]).resolve(), link[3] or ""
    if target.is_dir():
        return text
    if target.suffix == ".md" or not target.exists():
        # Sphinx says if a page does not exist
        name = "index.md" if target == ROOT.resolve() / "README.md" else target.name
        return f"[{text}]({name}{anchor})"
    place = target.relative_to(ROOT.resolve())
    (source / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(target, source / place)
    return f"[{text}]({place}{anchor})"


def _menu(there: set[str]) -> str:
    """The menu of the site: every page that is there, those without a place at the end."""
    placed = {page for pages in PLACES.values() for page in pages}
    others = sorted(
        page for name in there if (page := name.removesuffix(".md")) not in placed and not page.startswith("reference-")
    )
    blocks = []
    for caption, pages in {**PLACES, "More": tuple(others)}.items():
        lines = "\n".join(page for page in pages if f"{page}.md" in there)
        if lines:
            blocks.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```")
    return "\n" + "\n\n".join(blocks) + "\n"


def main() -> None:
    """Collect and build; warnings are errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=BUILD, help="folder to build in; the site is in html there")
    folder = parser.parse_args().output
    source, output = folder / "source", folder / "html"
    collect(source)
    shutil.rmtree(output, ignore_errors=True)
    options = ["-b", "html", "-W", "--keep-going", "-q", "-d", str(folder / "doctrees"), "-E"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *options, str(source), str(output)])
    if done.returncode:
        sys.exit(done.returncode)
    print(f"the site is in {output}: open index.html")


if __name__ == "__main__":
    main()
