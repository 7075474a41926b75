"""Tasks: of built-in words, of excerpts from documents, and of earlier answers."""

from __future__ import annotations

import os
import random
import re
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from edgespec._types import AnyArray
from edgespec.errors import UsageError

__all__ = [
    "Excerpt",
    "Seen",
    "excerpt_task",
    "follow_up",
    "free_task",
    "read_documents",
    "system_prompt",
]

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

_WORD = re.compile(r"\w+")
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
        words = _WORD.findall(text.lower())
        count = max(1, len(words) - _SHINGLE + 1)
        shingles = {" ".join(words[i : i + _SHINGLE]) for i in range(count)}
        values = np.array([zlib.crc32(s.encode()) for s in shingles], np.uint64)
        # The upper half of a product modulo 2 ** 64: every factor orders the triples differently.
        return ((values[:, None] * self._factors) >> np.uint64(32)).min(axis=0).astype(np.uint32)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


Messages = list[dict[str, Any]]

_SEEDS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("seeds.toml").read_text("utf-8")
)
"""Words that tasks are put together from."""

_PROSE_FORMS = (
    "Summarize this in {length}.",
    "What is this about? Answer in one sentence.",
    "Explain this to {reader}.",
    "Explain the most difficult word in this text.",
    "Rewrite this so that it is {style}.",
    "Rewrite this as {length} for {reader}.",
    "Translate the beginning into {language}.",
    "Translate this into {language}.",
    "Extract the most important facts as JSON: an array of objects with {fields}.",
    "List all names and numbers that occur here.",
    "Answer as JSON with the keys \"title\", \"summary\" and \"keywords\".",
    "Make a list of the main points.",
    "Turn this into a table in Markdown.",
    "Write three questions that this text answers, and the answers.",
    "Answer from the text only: what is the first thing that it says, and what follows from it?",
    "Answer from this text only, and say so if it is not in there: who is {name}?",
    "What does the text not say about {topic}?",
    "Continue this text.",
    "Write the paragraph that could stand before this one.",
    "Correct mistakes in this text and print it again.",
    "Print the text again without its last sentence.",
    "Quote the sentence that matters most.",
    "Give this a title.",
    "Write an email to {name} that passes this on. Keep it {style}.",
    "What do you think about this? Argue in {length}.",
    "Which instructions does this contain? List them step by step.",
    "Is this more about {topic} or about {other}? Explain.",
    "Make a quiz with multiple choice questions from this.",
)  # fmt: skip

_CODE_FORMS = (
    "Explain what this does.",
    "Explain this line by line to {reader}.",
    "What does this do? Answer in one sentence.",
    "Add comments to this and print it again.",
    "Add docstrings and types, and print it again.",
    "Print this again with {identifier} renamed to {renamed}.",
    "Write a unit test for this.",
    "Is there a bug in this? Fix it.",
    "Make this simpler.",
    "Make this faster, and say why it is.",
    "Continue this.",
    "Write the documentation for this, in Markdown.",
    "Rewrite this in {code}.",
    "What can go wrong here? List the cases.",
    "List the names that are defined here, as a JSON array.",
    "What does {identifier} mean here?",
    "Where is {identifier} used, and what for?",
    "Write an example that uses this.",
    "Write a commit message for a change that adds this.",
    "Review this code.",
    "Add error handling.",
    "Write a function like this one that {problem}.",
)

_MIXED_UP = 0.12  # share of words of a misspelled sentence
_HALF = 400  # characters of each of two texts


def free_task(random: Random) -> str:
    """Return a task about nothing given."""
    forms = _SEEDS["code_forms"] if random.random() < 0.25 else _SEEDS["forms"]
    return _filled(random.choice(forms), random)


def excerpt_task(excerpt: Excerpt, other: Excerpt, random: Random) -> str:
    """Return a task about an excerpt; sometimes about two."""
    if random.random() < 0.06:
        first, second = (_shown(Excerpt(e.text[:_HALF], e.language)) for e in (excerpt, other))
        order = random.choice(("Compare these two.", "What do these have in common?"))
        return f"{order}\n\n1.\n{first}\n\n2.\n{second}"
    forms = _CODE_FORMS if excerpt.language else _PROSE_FORMS
    order = _filled(random.choice(forms), random, excerpt.text)
    shown = _shown(excerpt)
    return f"{order}\n\n{shown}" if random.random() < 0.6 else f"{shown}\n\n{order}"


def follow_up(random: Random) -> str:
    """Return what somebody says after an answer."""
    return _filled(_seed("follow_ups", random), random)


def system_prompt(random: Random) -> str | None:
    """Return instructions for a conversation; None in half of the cases."""
    if random.random() < 0.5:
        return None
    form = random.choice(
        (
            "You are {role}.",
            "You are {role}. Keep your answers {style}.",
            "You are {role}, and you talk to {reader}.",
            "You are a helpful assistant. Answer in {length}.",
            "Answer questions about {topic} and {other}. Be {style}.",
            "You are an assistant of {name}, a {trade} in {place}.",
            "Be {style}.",
            "Answer in {language} if you are asked to, else in English. Use Markdown.",
            "You write {code}. Explain only what is asked.",
        )
    )
    return _filled(form, random)


def _shown(excerpt: Excerpt) -> str:
    if not excerpt.language:
        return excerpt.text
    return f"```{excerpt.language}\n{excerpt.text}\n```"


def _filled(form: str, random: Random, text: str = "") -> str:
    made = re.sub(r"\{(\w+)\}", lambda found: _word(found[1], random, text), form)
    return made[:1].upper() + made[1:] if random.random() < 0.9 else made.rstrip(".?")


def _word(name: str, random: Random, text: str) -> str:
    if name in _WORDS:
        return random.choice(_WORDS[name])
    if name in ("identifier", "renamed"):
        known = re.findall(r"\b[A-Za-z_]\w{3,}", text) or ["value"]
        word = random.choice(known)
        return f"`{word}`" if name == "identifier" else f"`{word[::-1].strip('_')[:12]}_2`"
    return _MADE[name](random)


def _seed(kind: str, random: Random) -> str:
    return random.choice(_SEEDS[kind])


def _sentence(random: Random) -> str:
    words = (_SEEDS["names"], _SEEDS["actions"], _SEEDS["objects"])
    first = " ".join(random.choice(w) for w in words)
    place, time = f"in {_seed('places', random)}", _seed("times", random)
    return f"{first} {place} {time}, {_seed('manners', random)}."


def _misspelled(random: Random) -> str:
    words = f"{_sentence(random)} {_sentence(random)}".split()
    return " ".join(_swapped(w, random) if random.random() < _MIXED_UP * 2 else w for w in words)


def _swapped(word: str, random: Random) -> str:
    if len(word) < 4:
        return word
    place = random.randrange(1, len(word) - 2)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def _sum(random: Random) -> str:
    name, things = (
        _seed("names", random),
        random.choice(("eggs", "stamps", "tiles", "tickets")),
    )
    a, b, c = (random.randint(2, high) for high in (90, 40, 12))
    return random.choice(
        (
            f"What is {a * b} divided by {b}?",
            f"What is {a} + {b} * {c}? Explain the steps.",
            f"{name} has {a} {things}, buys {b} more and shares them with {c} people. "
            f"How many does everyone get, and how many are left?",
            f"{a} {things} cost {b * a} euros. What do {c} cost?",
            f"Write the numbers from {b} to {b + c}, and mark those that {c} divides.",
        )
    )


def _people(random: Random) -> str:
    rows = [
        f"{_seed('names', random)}, {random.randint(18, 80)}, a {_seed('trades', random)} "
        f"from {_seed('places', random)}, {_seed('actions', random)} "
        f"{_seed('objects', random)}."
        for _ in range(random.randint(2, 5))
    ]
    order = random.choice(
        (
            "Make a table in Markdown of these people.",
            f"Write this as JSON with {_seed('fields', random)}.",
            "Write this as CSV.",
            "Who is the oldest? Who is the youngest?",
            "List the names in alphabetical order.",
        )
    )
    return f"{order}\n\n{' '.join(rows)}"


def _facts(random: Random) -> str:
    lines = [_sentence(random) for _ in range(random.randint(3, 6))]
    order = random.choice(
        (
            "Summarize this report.",
            "Which of these happened first? Explain.",
            "Make bullet points of this.",
            "Copy only the sentences that name a place you would like to see.",
            f"Write a news article from these notes. Keep it {_seed('styles', random)}.",
            "List every name with the object that belongs to it, as JSON.",
        )
    )
    return f"{order}\n\n{' '.join(lines)}"


_WORDS = {
    "topic": _SEEDS["topics"],
    "other": _SEEDS["topics"],
    "third": _SEEDS["topics"],
    "length": _SEEDS["lengths"],
    "reader": _SEEDS["readers"],
    "style": _SEEDS["styles"],
    "language": _SEEDS["languages"],
    "name": _SEEDS["names"],
    "place": _SEEDS["places"],
    "object": _SEEDS["objects"],
    "fields": _SEEDS["fields"],
    "role": _SEEDS["roles"],
    "trade": _SEEDS["trades"],
    "code": _SEEDS["code_languages"],
    "problem": _SEEDS["problems"],
}

_MADE = {
    "sentence": _sentence,
    "sentence2": _sentence,
    "sentence3": _sentence,
    "misspelled": _misspelled,
    "sum": _sum,
    "people": _people,
    "facts": _facts,
}
