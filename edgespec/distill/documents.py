"""The user's own text and code, cut into excerpts for tasks; what was said before is left out."""

from __future__ import annotations

import os
import random
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgespec._types import AnyArray
from edgespec.errors import UsageError

__all__ = ["Excerpt", "Seen", "read_documents"]

_PROSE = frozenset((".md", ".markdown", ".rst", ".txt", ".tex", ".adoc", ".org"))
_CODE = {
    ".py": "python", ".pyi": "python", ".js": "javascript", ".mjs": "javascript",
    ".ts": "typescript", ".tsx": "typescript", ".jsx": "javascript", ".java": "java", ".c": "c",
    ".h": "c", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".hpp": "cpp", ".cs": "csharp",
    ".go": "go", ".rs": "rust", ".kt": "kotlin", ".swift": "swift", ".rb": "ruby", ".php": "php",
    ".sh": "bash", ".sql": "sql", ".html": "html", ".css": "css", ".json": "json", ".yaml": "yaml",
    ".yml": "yaml", ".toml": "toml", ".r": "r", ".jl": "julia", ".lua": "lua", ".pl": "perl",
    ".scala": "scala", ".hs": "haskell", ".tcl": "tcl",
}  # fmt: skip
_SKIPPED = frozenset(("node_modules", "__pycache__", "site-packages", "venv", "build", "dist"))

_MOST_FILE = 1 << 20  # bytes of a file; the rest is left out
_MOST_ALL = 64 << 20
_MOST_FILES = 50_000
_SHORTEST, _LONGEST = 160, 900  # characters of an excerpt
_LONGEST_LINE = 300  # on average: else it is generated, or data
_FROM_FILE = 40  # excerpts


@dataclass(frozen=True)
class Excerpt:
    """A piece of a document.

    Attributes:
        language: of its code, as Markdown names it; empty if it is prose.
    """

    text: str
    language: str


def read_documents(places: Sequence[Path]) -> list[Excerpt]:
    """Read files, and folders with all that is in them; near-duplicates are left out.

    Markdown, plain text and source code are read; what is hidden or binary is not.

    Raises:
        UsageError: a place does not exist, or there is no text.
    """
    files = [file for place in places for file in _files(place)][:_MOST_FILES]
    random.Random(0).shuffle(files)  # if they are too many, some of every kind
    excerpts: list[Excerpt] = []
    seen, size = Seen(), 0
    for file in files:
        text = _read(file)
        size += len(text)
        language = _CODE.get(file.suffix.lower(), "")
        excerpts += [Excerpt(t, language) for t in _cut(text) if seen.add(t)]
        if size >= _MOST_ALL:
            break
    if not excerpts:
        raise UsageError(f"there is no text to learn from in {', '.join(map(str, places))}")
    return excerpts


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    if not place.is_dir():
        raise UsageError(f"cannot read {place}: there is no such file or folder")
    for folder, folders, names in os.walk(place):
        kept = (name for name in folders if name not in _SKIPPED and name[0] != ".")
        folders[:] = sorted(kept)
        for name in sorted(names):
            file = Path(folder, name)
            if name[0] != "." and (file.suffix.lower() in _PROSE or file.suffix.lower() in _CODE):
                yield file


def _read(file: Path) -> str:
    """Return a file's beginning; nothing if it is binary or cannot be read."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_FILE)
    except OSError:
        return ""
    if b"\0" in data:
        return ""
    if len(data) == _MOST_FILE:
        data = data[: data.rfind(b"\n") + 1]
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return ""


def _cut(text: str) -> list[str]:
    """Cut a document between blocks, or between lines where a block is long."""
    found: list[str] = []
    piece = ""
    for part in _parts(text):
        if piece and len(piece) + len(part) > _LONGEST:
            found.append(piece)
            piece = ""
        piece += part
    found.append(piece)
    usable = [t for t in (piece.strip("\n") for piece in found) if _readable(t)]
    every = max(1, -(-len(usable) // _FROM_FILE))
    return usable[::every]


def _parts(text: str) -> Iterator[str]:
    for block in text.split("\n\n"):
        if len(block) <= _LONGEST:
            yield block + "\n\n"
        else:
            yield from (line + "\n" for line in block.split("\n"))
            yield "\n"


def _readable(text: str) -> bool:
    letters = sum(map(str.isalpha, text))
    lines = text.count("\n") + 1
    return (
        _SHORTEST <= len(text) <= _LONGEST
        and letters > len(text) // 2
        and len(text) < _LONGEST_LINE * lines
    )


# -- texts that say nearly the same: MinHash over their word triples -----------------------------

_WORDS = re.compile(r"\w+")
_SHINGLE = 3  # words
_BANDS, _ROWS = 16, 4
"""Texts that share seven tenths of their triples are found with 98%, three tenths with 12%."""

_ALIKE = 0.6
"""Share of equal hashes, an estimate of the share of common triples, from which texts are alike."""

_MOST = 200_000  # texts that are remembered


class Seen:
    """Remembers texts, the latest ones if they are very many."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._factors = random.integers(1 << 63, 1 << 64, _BANDS * _ROWS, np.uint64) | np.uint64(1)
        self._buckets: list[OrderedDict[bytes, AnyArray]] = [OrderedDict() for _ in range(_BANDS)]

    def add(self, text: str) -> bool:
        """Remember a text; return False, and do not, if one that is alike was added before."""
        hashes = self._hashes(text)
        keys = [band.tobytes() for band in hashes.reshape(_BANDS, _ROWS)]
        for key, bucket in zip(keys, self._buckets, strict=True):
            other = bucket.get(key)
            if other is not None and float(np.mean(other == hashes)) >= _ALIKE:
                return False
        for key, bucket in zip(keys, self._buckets, strict=True):
            bucket[key] = hashes
            if len(bucket) > _MOST:
                bucket.popitem(last=False)
        return True

    def _hashes(self, text: str) -> AnyArray:
        words = _WORDS.findall(text.lower())
        count = max(1, len(words) - _SHINGLE + 1)
        shingles = {" ".join(words[i : i + _SHINGLE]) for i in range(count)}
        values = np.array([zlib.crc32(s.encode()) for s in shingles], np.uint64)
        # The upper half of a product modulo 2 ** 64: every factor orders the triples differently.
        return ((values[:, None] * self._factors) >> np.uint64(32)).min(axis=0).astype(np.uint32)
