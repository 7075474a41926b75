"""Commands about the last answer, and files for the next message."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.chat.answering import begins_thinking
from edgespec.chat.attachments import Attachments
from edgespec.chat.clipboard import copy_text
from edgespec.chat.conversation import Chat, texts_of
from edgespec.chat.restore import load_saved
from edgespec.chat.savefile import SavedConversation
from edgespec.errors import UsageError
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Message
from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters

Say = Callable[..., list[str]]
ANSWER = "<think>\nso\n</think>\n\nText\n\n```py\none = 1\n```\n\n```\ntwo\nüñ\n```\n"


@pytest.fixture(autouse=True)
def no_desktop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


@pytest.fixture
def answered(chat: Chat) -> Chat:
    """The answer above, in a conversation that was loaded."""
    messages = (Message("user", "hi"), Message("assistant", ANSWER))
    load_saved(chat, SavedConversation(messages, "test", SamplingParameters()))
    return chat


def _copied(chat: Chat) -> str:
    sequence = chat.screen.sent[-1]  # type: ignore[attr-defined]
    assert sequence.startswith("\x1b]52;c;")
    assert sequence.endswith("\a")
    return base64.b64decode(sequence[7:-1]).decode()


def test_copy_through_the_terminal(answered: Chat, say: Say) -> None:
    assert say("/copy") == ["copied block 2, 2 lines, by the terminal"]
    assert _copied(answered) == "two\nüñ\n"
    say("/copy 1")
    assert _copied(answered) == "one = 1\n"
    say("/copy all")
    assert _copied(answered) == ANSWER.partition("</think>\n\n")[2]
    assert say("/copy 3") == [
        "error: there is no code block '3': there is 1 (py, 1 line), 2 (text, 2 lines)"
    ]


def test_copy_through_the_desktop(monkeypatch: Any, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "xclip"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called; cat > {tmp_path}/copied\n')
    program.chmod(0o755)
    with pytest.raises(UsageError, match="no clipboard is known here: /write"):
        copy_text("text", None)
    monkeypatch.setenv("DISPLAY", ":9")
    sent: list[str] = []
    assert copy_text("täxt\n", sent.append) == "xclip and the terminal"
    assert (tmp_path / "copied").read_text("utf-8") == "täxt\n"
    assert (tmp_path / "called").read_text() == "-selection clipboard\n"
    assert copy_text("x" * 100_000, sent.append) == "xclip"
    assert len(sent) == 1
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UsageError, match="too long for the terminal"):
        copy_text("x" * 100_000, sent.append)


def test_write(answered: Chat, say: Say, tmp_path: Path) -> None:
    path = tmp_path / "a file.py"
    assert say(f"/write {path} 1") == [f"block 1, 1 line, is in {path}"]
    assert path.read_text() == "one = 1\n"
    assert say(f"/write {path}") == [f"error: {path} is there already: /write! writes over it"]
    assert path.read_text() == "one = 1\n"
    say(f'/write! "{path}"')
    assert path.read_text("utf-8") == "two\nüñ\n"
    assert say("/write") == ["error: give a file: /write FILE"]
    assert "cannot write" in say(f"/write {tmp_path}/missing/x.py")[0]
    assert "no code block '9'" in say(f"/write {tmp_path}/y.py 9")[0]


def test_think(answered: Chat, say: Say) -> None:
    assert say("/think") == ["so"]
    answered.session.messages[-1] = Message("assistant", "plain")
    answered.record()
    assert say("/think") == ["error: there is no reasoning in the last answer"]
    assert say("/copy") == ["error: the last answer has no code block"]


def test_the_reasoning_of_a_real_answer(chat: Chat, say: Say) -> None:
    chat.session.limits = GenerationLimits(max_tokens=40)
    chat.session.grammar = 'root ::= "<think>\\nso it is\\n</think>\\n\\nYes."'
    say("Is it?")
    assert say("/think") == ["so it is"]
    say("/copy all")
    assert _copied(chat) == "Yes."


@pytest.mark.parametrize(
    ("prompt", "thinks"),
    [("Is it? <think>\n", True), ("Is it? <think>", True), ("<think> Is it, or is it not?", False)],
)
def test_a_prompt_that_begins_the_reasoning(engine: Engine, prompt: str, thinks: bool) -> None:
    turn: Any = SimpleNamespace(stream=engine.generate(prompt))
    assert begins_thinking(engine, turn) is thinks


# -- files ------------------------------------------------------------------------------------


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
        (b"\xff\xfe", "is not UTF-8 (byte 0xff at offset 0): convert it first"),
        (b"a\0b", "is no text: it has zero bytes"),
        (b" \n", "is empty"),
        (b"word " * 1500, "tokens and 768 fit: give a part of it, or start again"),
        (b"x" * 100_000, "does not go into the context: it has more than 64 KiB"),
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
