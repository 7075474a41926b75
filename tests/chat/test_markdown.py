from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edgespec.chat.characters import printable, sendable
from edgespec.chat.markdown import (
    Folding,
    MarkdownLines,
    chosen_block,
    code_blocks,
    split_finished,
    split_thought,
)
from edgespec.chat.view import Lines
from edgespec.errors import UsageError


def _folded(text: str, sizes: list[int], *, thinking: bool = False) -> str:
    folding, shown, at = Folding(thinking=thinking), "", 0
    for size in [*sizes, len(text)]:
        shown += folding.feed(text[at : at + size])
        at += size
    return shown + folding.finish()


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("plain", "", "plain"),
        ("<think>\nso\n</think>\n\nanswer", "so", "answer"),
        ("\n <think>so</think>answer <think> is a mark", "so", "answer <think> is a mark"),
        ("<think>never ends", "never ends", ""),
        ("<think></think>answer", "", "answer"),
        ("the mark <think> and </think>", "", "the mark <think> and </think>"),
        ("<thinking>", "", "<thinking>"),
        ("<", "", "<"),
        ("", "", ""),
    ],
)
@given(sizes=st.lists(st.integers(1, 9)))
def test_the_same_is_folded_in_any_pieces(
    text: str, thought: str, answer: str, sizes: list[int]
) -> None:
    assert split_thought(text) == (thought, answer)
    assert _folded(text, sizes) == answer


@given(sizes=st.lists(st.integers(1, 9)))
def test_reasoning_that_the_prompt_began(sizes: list[int]) -> None:
    text = "so\n</think>\n\nanswer"
    assert split_thought(text) == ("so", "answer")
    assert _folded(text, sizes, thinking=True) == "answer"


BITS = [
    "a",
    "b c",
    "\n",
    "\n\n",
    "# ",
    "- ",
    "1. ",
    "```",
    "    ",
    "*",
    "|",
    "---",
    "> ",
    "===",
    " ",
]


def _rendered(text: str) -> str:
    out = StringIO()
    Console(file=out, width=80).print(MarkdownLines(text), end="")
    return out.getvalue()


@given(st.lists(st.sampled_from(BITS), max_size=30))
def test_finished_blocks_stay(bits: list[str]) -> None:
    finished = ""
    for end in range(len(bits) + 1):
        text = "".join(bits[:end])
        now, rest = split_finished(text)
        assert text in (now + rest, f"{now}\n{rest}")
        assert now.startswith(finished)
        finished = now


def test_only_the_last_block_is_open() -> None:
    assert split_finished("one\n\ntwo") == ("", "one\n\ntwo")
    assert split_finished("one\n\ntwo\n") == ("one\n", "two\n")
    assert split_finished("```\none\n\ntwo\n") == ("", "```\none\n\ntwo\n")
    assert split_finished("- a\n*")[0] == ""


def test_nothing_of_an_answer_is_hidden() -> None:
    text = "a <b>bold</b> List<int>\n\n<div>\n\n[1]: http://a.example\n"
    for part in ("<b>bold</b>", "List<int>", "<div>", "http://a.example"):
        assert part in _rendered(text)


def test_lines_are_kept_and_not_padded() -> None:
    assert _rendered("roses\nviolets") == "roses\nviolets\n"
    assert all(line == line.rstrip() for line in _rendered("# h\n\n- a\n\n`c`\n").split("\n"))


def test_only_the_last_lines() -> None:
    out = StringIO()
    console = Console(file=out, width=80)
    text = "```\n" + "\n".join(map(str, range(50))) + "\n```\n"
    console.print(Lines(MarkdownLines(text), last=3, mark=True), end="")
    assert out.getvalue().split() == ["...", "47", "48", "49"]
    assert len(out.getvalue().splitlines()) == 4


def test_code_blocks_are_numbered_as_they_are_found() -> None:
    text = "```py\na\n```\n\n    indented\n\n> ```\n> b\n> ```\n\n1. x\n\n   ~~~ sh -x\n   c\n"
    found = code_blocks(text)
    assert [(b.number, b.language, b.text) for b in found] == [
        (1, "py", "a\n"),
        (2, "", "b\n"),
        (3, "sh", "c\n"),
    ]
    shown = _rendered(text)
    assert all(mark in shown for mark in ("[1] py\n", "[2]\n", "[3] sh\n"))
    assert MarkdownLines(text, 4).blocks == 7
    assert chosen_block(found, "") == chosen_block(found, "3") == found[2]
    with pytest.raises(UsageError, match=r"no code block '4': there is 1 \(py, 1 line\), 2 \(text"):
        chosen_block(found, "4")
    with pytest.raises(UsageError, match="has no code block"):
        chosen_block([], "1")


@given(st.lists(st.sampled_from(BITS), max_size=30))
def test_blocks_have_the_same_numbers_in_parts(bits: list[str]) -> None:
    text = "".join(bits)
    finished, rest = split_finished(text)
    assert MarkdownLines(rest, MarkdownLines(finished).blocks).blocks == len(code_blocks(text))


@pytest.mark.parametrize("text", ["plain\n\ttext", "Grüße 👋🏽 語 e\u0301"])
def test_text_goes_to_the_terminal_unchanged(text: str) -> None:
    assert printable(text) == sendable(text) == text


def test_controls_do_not() -> None:
    assert printable("a\x1b[31mb\x07\x9b\r\x00\x7f") == "a[31mb"
    assert sendable("a\udcff") == "a\ufffd"


def test_joined_emoji_stand_side_by_side() -> None:
    family = "\U0001f469\u200d\U0001f467"
    assert printable(f"abc {family} def") == "abc \U0001f469\U0001f467 def"
    assert printable("\u0915\u094d\u200d\u0937") == "\u0915\u094d\u200d\u0937"  # of a script
