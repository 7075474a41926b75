"""Another model or draft in a running conversation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.chat.conversation import Attachments, Chat, Engines, texts_of
from edgespec.errors import EdgespecError, InsufficientMemoryError, ModelFileError, UsageError
from edgespec.runtime.engine import Engine
from edgespec.runtime.options import EngineOptions
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


SMALL = EngineOptions(threads=2, context=512, draft="ngram", k=2, exact="bitwise")


@pytest.fixture
def engines(chat: Chat) -> Iterator[Engines]:
    """Of the conversation, with engines of its own."""
    with Engines(Engine, None, SMALL) as opened:
        chat.engines = opened
        chat.session = chat.session.moved_to(opened.engine)
        yield opened


def test_another_draft_goes_on_with_what_is_known(chat: Chat, say: Say, engines: Engines) -> None:
    say("/set temperature 0", "Tell me a story about the sea. " * 40)
    before, first = texts_of(chat.session), engines.engine
    assert say("/draft none")[-1].startswith("smollm2-135m, draft none, context 3")
    assert engines.engine is chat.session.engine is not first
    assert texts_of(chat.session) == before
    say("And?")
    assert chat.last is not None
    assert (chat.last[0].drafter, chat.last[1].acceptance) == ("none", None)
    assert chat.last[0].statistics.reused_tokens > 256
    facts = chat.archive.load(str(chat.recorder.id)).facts
    assert facts["model"]["draft"] == "none"


def test_another_model(chat: Chat, say: Say, engines: Engines, damaged_model: Path) -> None:
    say("Hello")
    assert say(f"/model {damaged_model}")[-1].startswith("damaged, draft ngram")
    say("And?")
    stored = chat.archive.load(str(chat.recorder.id))
    models = [e.details["model"] for e in stored.entries if e.role == "assistant"]
    assert models == ["smollm2-135m", "damaged"]
    assert stored.facts["model"]["file"] == str(damaged_model)
    assert say(f"/draft {damaged_model}")[-1].startswith("damaged, draft damaged")
    assert say("/model smollm2-135m")[-1].startswith("smollm2-135m, draft ngram")
    assert engines.model == "smollm2-135m"


@pytest.mark.parametrize("line", ["/model missing.gguf", "/model {bad}", "/draft {bad}"])
def test_the_old_engine_stays_when_the_new_one_cannot_be_opened(
    chat: Chat, say: Say, engines: Engines, tmp_path: Path, line: str
) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF no")
    say("Hello")
    before, engine = texts_of(chat.session), chat.session.engine
    assert say(line.format(bad=tmp_path / "bad.gguf"))[0].startswith("error: ")
    assert (texts_of(chat.session), chat.session.engine, engines.engine) == (before, engine, engine)
    say("And?")
    assert len(texts_of(chat.session)) == 4


def test_where_two_models_do_not_fit_the_old_one_is_closed_first(default_model: Path) -> None:
    alive: list[Engine] = []

    def open(model: str | None, options: EngineOptions) -> Engine:
        if any(not one.closed for one in alive):
            raise InsufficientMemoryError("they do not fit together")
        if model == "bad.gguf":
            raise ModelFileError("bad")
        alive.append(Engine(default_model, options))
        return alive[-1]

    with Engines(open, None, SMALL) as engines:
        first = engines.engine
        engines.change_draft("none")
        assert (first.closed, engines.engine.drafter_name) == (True, "none")
        with pytest.raises(EdgespecError, match="bad"):
            engines.change_model("bad.gguf")
        assert engines.engine.drafter_name == "none"
        assert not engines.engine.closed
    assert all(one.closed for one in alive)
    assert len(alive) == 3
