"""Lines of a streamed answer are broken at words."""

from __future__ import annotations

from io import StringIO

import pytest

from edgespec.chat.characters import WordWriter


def wrapped(*pieces: str, width: int = 10) -> str:
    file = StringIO()
    writer = WordWriter(file, lambda: width)
    for piece in pieces:
        writer.write(piece)
    writer.finish()
    return file.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two three four", "one two\nthree four"),
        ("one two three\n\nfour", "one two\nthree\n\nfour"),
        ("exactly te next", "exactly te\nnext"),
        ("a verylongwordindeed b c", "a\nverylongwordindeed b\nc"),
        ("  indented here", "  indented\nhere"),
        ("x = 1  # two", "x = 1  #\ntwo"),
        ("四个字和四个字", "四个字和四\n个字"),
        ("cafe\u0301 cafe\u0301s", "cafe\u0301 cafe\u0301s"),
        (
            "```\nlet x = longer\n```\none two three",
            "```\nlet x = longer\n```\none two\nthree",
        ),
        ("trailing ", "trailing "),
    ],
)
def test_words(text: str, shown: str) -> None:
    assert wrapped(text) == wrapped(*text) == shown


def test_a_word_that_fills_the_line_does_not_wait() -> None:
    file = StringIO()
    WordWriter(file, lambda: 10).write("a" * 25)
    assert len(file.getvalue()) >= 20
