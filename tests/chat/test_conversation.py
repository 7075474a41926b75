from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.chat.conversation import Attachments, Chat, texts_of
from edgespec.errors import UsageError
from edgespec.runtime.engine import Engine
from tests.chat.conftest import say_to

Say = Callable[..., list[str]]


def test_files_go_before_the_next_message_only(chat: Chat, say: Say, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    (tmp_path / "b two.md").write_text("````\ncode\n````\n")
    lines = say("/file", f"/file {tmp_path}/one.py", f"/file {tmp_path}/b two.md", "/file")
    assert lines[0] == "no file is waiting"
    assert lines[1].startswith("one.py, ")
    assert lines[3] == "with the next message: one.py, b two.md"
    assert chat.summary.endswith("with one.py, b two.md")
    say("What is this?", "And now?")
    first, _, second, _ = texts_of(chat.session)
    expected = "one.py:\n\n```\nx = 1\n```\n\nb two.md:\n\n`````\n````\ncode\n````\n`````\n\n"
    assert (first, second) == (f"{expected}What is this?", "And now?")
    stored = chat.archive.load(str(chat.recorder.id))
    assert stored.title == "What is this?"
    assert stored.entries[0].details["files"] == ["one.py", "b two.md"]
    say("/branch 1", "/edit", revision="OLD Hm?")
    assert texts_of(chat.session)[0] == f"{expected}What is this? Hm?"
    say(f"/file {tmp_path}/one.py", "/file none")
    assert say("/file") == ["no file is waiting"]


def test_files_stay_when_the_message_is_refused(chat: Chat, say: Say, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    lines = say(f"/file {tmp_path}/a.txt", "word " * 2000, "/file")
    assert "the context holds 1024" in lines[1]
    assert lines[2] == "with the next message: a.txt"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfea", "is not UTF-16 (byte 0x61 at offset 2): convert it first"),
        (b"a\xff", "is not UTF-8 (byte 0xff at offset 1): convert it first"),
        (b"a\0b", "is not text: it has zero bytes"),
        (b" \n", "is empty"),
        (b"word " * 1500, "tokens and 768 fit: give a part of it, or start again"),
        (b"x" * 100_000, "does not fit into the context: it has more than 64 KiB"),
    ],
)
def test_bad_files(engine: Engine, tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Attachments().add(path, engine)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_bad_files(engine: Engine, tmp_path: Path) -> None:
    files = Attachments()
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        files.add(tmp_path / "missing", engine)
    with pytest.raises(UsageError, match="not a regular file"):
        files.add(tmp_path, engine)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        files.add(tmp_path / "pipe", engine)
    (tmp_path / "half.txt").write_text("word " * 500)
    files.add(tmp_path / "half.txt", engine)
    with pytest.raises(UsageError, match="fit beside the other files"):
        files.add(tmp_path / "half.txt", engine)
    assert files.names == ["half.txt"]


QUESTION = "Name the seven days of the week."


def test_an_earlier_conversation_is_copied_from(new_chat: Callable[..., Chat]) -> None:
    def accepted(chat: Chat) -> tuple[str, int]:
        chat.session.engine.forget()
        say_to(chat, "/set temperature 0", QUESTION)
        assert chat.last is not None
        result, _ = chat.last
        return result.text, result.statistics.accepted

    first, alone = accepted(new_chat(tokens=40))
    assert accepted(new_chat(tokens=40)) == (first, alone)
    text, more = accepted(new_chat(tokens=40, lookup=True))
    assert text == first
    assert more > alone + 10
