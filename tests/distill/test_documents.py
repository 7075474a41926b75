"""The user's documents: what is text is read in bounded pieces, what is not is left out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edgespec.distill.tasks import Seen, read_documents
from edgespec.errors import UsageError

PARAGRAPHS = [
    f"Paragraph {n} tells of harbour {n * 7} and of the {n + 3} ships that lay there, of who owned "
    f"ship {n * 11}, and of the {n * 13} barrels of salt that went down with it in storm {n * 17}."
    for n in range(200)
]


def test_text_and_code_are_read_and_nothing_else(tmp_path: Path) -> None:
    code = "".join(f"def area_{i}(width, height):\n    return width * height\n\n" for i in range(9))
    (tmp_path / "notes.md").write_text("\n\n".join(PARAGRAPHS[:2]))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "areas.py").write_text(code)
    (tmp_path / ".hidden.md").write_text(PARAGRAPHS[1])
    (tmp_path / "image.png").write_text(PARAGRAPHS[2])
    (tmp_path / "binary.txt").write_bytes(PARAGRAPHS[3].encode() + b"\0")
    (tmp_path / "latin.txt").write_bytes(PARAGRAPHS[4].encode() + b"\xe9")
    (tmp_path / "numbers.txt").write_text("12345, 67890\n" * 40)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "other.md").write_text(PARAGRAPHS[5])
    found = read_documents([tmp_path])
    assert {(e.language, e.text.split()[0]) for e in found} == {
        ("", "Paragraph"),
        ("python", "def"),
    }
    assert "".join(e.text for e in found if e.language).split() == code.split()


def test_pieces_are_bounded_and_distinct(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(PARAGRAPHS))
    (tmp_path / "b.txt").write_text("\r\n\r\n".join(PARAGRAPHS))
    (tmp_path / "c.txt").write_text("\n".join(PARAGRAPHS))  # one long block
    found = read_documents([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert 20 <= len(found) <= 40
    assert all(160 <= len(e.text) <= 900 for e in found)
    assert all(160 <= len(e.text) <= 900 for e in read_documents([tmp_path / "c.txt"]))


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no text to learn from"):
        read_documents([tmp_path])
    with pytest.raises(UsageError, match="no such file or folder"):
        read_documents([tmp_path / "missing"])


WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ala", "eno", "iru", "osi", "ume")]


def text(seed: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=80)


def test_texts_that_differ_in_a_word_are_alike() -> None:
    seen = Seen()
    for seed in range(50):
        assert seen.add(" ".join(text(seed)))
    for seed in range(50):
        words = text(seed)
        words[seed] = "another"
        assert not seen.add(f"{' '.join(words).upper()}!")


def test_texts_that_share_a_third_are_not() -> None:
    seen = Seen()
    common = text(-1)[:26]
    assert all(seen.add(" ".join(common + text(seed)[:54])) for seed in range(100))


def test_short_texts() -> None:
    seen = Seen()
    assert [seen.add(t) for t in ("", "one", "One!", "one two", "")] == [
        True,
        True,
        False,
        True,
        False,
    ]
