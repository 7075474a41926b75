"""The repository's pages, and the programs that are printed in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (".github", "bench", "edgespec", "models", "tests")
PROGRAM = re.compile(r"<!-- example: (\S+) -->\n\n```python\n(.*?)```", re.DOTALL)


def pages() -> list[Path]:
    """Every Markdown file of the repository."""
    found = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in _below(ROOT / name))]
    return sorted(found)


def programs() -> Iterator[tuple[str, str]]:
    """Name and text of every program: a Python block behind a marker, which is an HTML comment."""
    for page in pages():
        yield from PROGRAM.findall(page.read_text(encoding="utf-8"))


def program(name: str) -> str:
    """Return the one program of this name."""
    found = [text for other, text in programs() if other == name]
    assert len(found) == 1
    return found[0]


def _below(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.md")
