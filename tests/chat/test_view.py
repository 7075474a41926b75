from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.style import Style
from rich.text import Text

from edgespec.chat.markdown import Folding
from edgespec.chat.view import ORIGIN_STYLES, Body, LiveView, MarkdownBody, PlainView
from edgespec.runtime.cycle import Origin
from edgespec.runtime.stream import TokenChunk

SCRIPT = Path(__file__).with_name("growing_answer.py")
Tmux = Callable[..., Any]


def _pieces(*texts: str) -> list[TokenChunk]:
    return [TokenChunk(text, 0, Origin.PLAIN) for text in texts]


def _answer() -> tuple[str, list[str]]:
    """Blocks of every kind, longer and shorter than the screen, and a mark in every line."""
    marks = [f"m{number:03d}" for number in range(170)]
    left = iter(marks)
    filler = "and some words so that it has to be wrapped " * 4
    blocks = [
        f"# {next(left)}",
        *(f"{next(left)} *some* words" for _ in range(10)),
        "\n".join(f"- {next(left)} item" for _ in range(50)),
        f"{next(left)} {filler}{next(left)}",
        "```python\n" + "\n".join(f"{next(left)} = 1" for _ in range(60)) + "\n```",
        "| a | b |\n| --- | --- |\n" + "\n".join(f"| {next(left)} | x |" for _ in range(5)),
        "\n".join(f"> {next(left)}\n>" for _ in range(3)),
    ]
    blocks += [f"{index}. {mark}" for index, mark in enumerate(left, 1)]
    return "\n\n".join(blocks), marks


@pytest.mark.parametrize("before", [0, 30], ids=["top of the screen", "bottom of the screen"])
@pytest.mark.parametrize("kind", ["markdown", "origins"])
def test_each_line_is_on_the_terminal_once(
    tmux: Tmux, tmp_path: Path, kind: str, before: int
) -> None:
    text, marks = _answer()
    (tmp_path / "answer.md").write_text(text, "utf-8")
    command = shlex.join([sys.executable, str(SCRIPT), kind, str(tmp_path / "answer.md")])
    terminal = tmux(f"seq -f line%g {before}; {command}" if before else command)
    screen = terminal.wait("THE END", scrolled=True)
    assert {mark: screen.count(mark) for mark in marks} == dict.fromkeys(marks, 1)
    assert [screen.index(mark) for mark in marks] == sorted(screen.index(mark) for mark in marks)
    assert screen.count("line7\n") == (before > 0)
    assert "THE STATUS" not in screen
    assert "reading" not in screen


def _drawn(body: Body, *texts: str) -> list[str]:
    """What is sent to a terminal of 60 columns for each piece."""
    out = StringIO()
    console = Console(file=out, width=60, height=12, force_terminal=True, color_system=None)
    drawn = []
    with LiveView(console, body, lambda: "THE STATUS") as view:
        for piece in _pieces(*texts):
            view._due = 0.0
            out.truncate(out.seek(0))
            view(piece)
            drawn.append(out.getvalue())
        out.truncate(out.seek(0))
    return [*drawn, out.getvalue()]


def test_the_status_is_below_what_grows_and_gone_at_the_end() -> None:
    *drawn, end = _drawn(MarkdownBody(Folding()), "one", " two", "\n\nthree")
    assert all(frame.rstrip().endswith("THE STATUS") for frame in drawn)
    assert "one two" in drawn[1]
    assert "THE STATUS" not in end


def test_reasoning_is_one_line_that_counts() -> None:
    *drawn, end = _drawn(MarkdownBody(Folding()), "<th", "ink>so", " and so", "</think>\n\n", "A")
    assert "so" not in "".join(drawn)
    assert "thinking ... 1 token, 0 s" in drawn[1]
    assert "thinking ... 2 tokens, 0 s" in drawn[2]
    assert "thought for 3 tokens, 0 s: /think shows it" in drawn[3]
    assert "A" in end
    *_, end = _drawn(MarkdownBody(Folding(thinking=True)), "so", " and")
    assert "thinking ended after 2 tokens, 0 s: /think shows it" in end
    *drawn, end = _drawn(MarkdownBody(Folding()), "<think>", "\n\n", "</think>", "\n\n", "A")
    assert "thought" not in "".join([*drawn, end])


def test_code_blocks_are_numbered_through_the_answer() -> None:
    *drawn, end = _drawn(
        MarkdownBody(Folding()), "```py\nx\n```\n", "\ntext\n\n", "- a\n\n  ```\n  y\n  ```\n"
    )
    assert "[1] py" in drawn[0]
    assert "[2]" in end


@pytest.mark.parametrize("wide", ["語" * 200, "👋🏽 " * 100, "x" * 400])
def test_no_line_is_wider_than_the_terminal(wide: str) -> None:
    from rich.cells import cell_len

    for body in (MarkdownBody(Folding()), MarkdownBody(Folding(), origins=True)):
        for frame in _drawn(body, wide[:50], wide[50:]):
            text = Console(width=999).render_str(frame).plain
            lines = [line.split("\x1b")[0] for line in text.replace("\r", "\n").split("\n")]
            assert max(map(cell_len, lines)) <= 60


def test_origins_are_laid_over_markdown() -> None:
    text = (
        "# Title\n\nSome **bold** `code` and [a link](http://x.org/y) &amp; *more*.\n\n"
        "1. first\n2. second\n\n```python\nx = [1, 2]\n```\n\n| a | b |\n| - | - |\n| one | two |\n"
    )
    origins = (Origin.ACCEPTED, Origin.CORRECTED, Origin.BONUS, Origin.PLAIN)
    plain, coloured = StringIO(), StringIO()
    for out, marked in ((plain, False), (coloured, True)):
        console = Console(file=out, width=60, force_terminal=True, color_system="standard")
        body = MarkdownBody(Folding(), origins=marked)
        for number, word in enumerate(re.findall(r"\S+|\s+", text)):
            for part in body.feed(TokenChunk(word, 0, origins[number // 2 % 4])):
                console.print(part, end="")
        for part in body.finish():
            console.print(part, end="")
    bare = [Text.from_ansi(out.getvalue()).plain for out in (plain, coloured)]
    assert bare[0] == bare[1]  # Markdown is shown as without colours
    shown = Text.from_ansi(coloured.getvalue())
    words = re.findall(r"\S+", text)
    for word in ("Some", "bold", "code", "more", "first", "second", "one", "two", "x"):
        number = next(n for n, each in enumerate(words) if re.sub(r"[*`.]", "", each) == word)
        style = Style.parse(ORIGIN_STYLES[origins[number % 4]])
        place = re.search(rf"\b{word}\b", shown.plain)
        assert place is not None, word
        found = shown.get_style_at_offset(Console(), place.start())
        if style.color is not None:
            assert found.color is not None and found.color.number == style.color.number, word


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [([], "\n"), (["a", "b"], "ab\n"), (["a\n"], "a\n"), (["a\n", "b"], "a\nb\n")],
)
def test_plain_view_ends_the_last_line(pieces: list[str], shown: str) -> None:
    out = StringIO()
    with PlainView(out, lambda piece: piece.text) as show:
        for piece in _pieces(*pieces):
            show(piece)
    assert out.getvalue() == shown


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (
            ["<think>", "so", "</think>", "\n\nA"],
            "thinking ... 3 tokens, 0 s: /think shows it\nA\n",
        ),
        (["<think>", "\n</think>\n", "A"], "A\n"),
        (["<think>so"], "thinking ... \n"),
        (["<thi"], "<thi\n"),
        ([" <b>"], " <b>\n"),
    ],
)
def test_plain_view_folds_reasoning_where_it_is_told_to(pieces: list[str], shown: str) -> None:
    folded, whole = StringIO(), StringIO()
    with (
        PlainView(folded, lambda piece: piece.text, Folding()) as show,
        PlainView(whole, lambda piece: piece.text) as copy,
    ):
        for piece in _pieces(*pieces):
            show(piece)
            copy(piece)
    assert folded.getvalue() == shown
    assert whole.getvalue() == "".join(pieces) + "\n"
