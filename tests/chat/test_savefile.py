from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.chat.events import Conversation, Entry
from edgespec.chat.recorder import SavedConversation, exporter, load_conversation, save_conversation
from edgespec.errors import EdgespecError, UsageError
from edgespec.runtime.session import Message
from edgespec.sampling.parameters import SamplingParameters

MESSAGES = (
    Message("system", "Be brief."),
    Message("user", "Grüße 👋🏽\n\ttwo lines"),
    Message("assistant", "\x1b[1mhi"),
)
SAMPLING = SamplingParameters(temperature=0.5, seed=2**64 - 1, logit_bias={3: float("-inf"), 4: 1})
GOOD = SavedConversation(MESSAGES, "test", SAMPLING)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save_conversation(path, GOOD)
    assert load_conversation(path) == GOOD
    assert [*tmp_path.iterdir()] == [path]


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=5))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    roles = ("user", "assistant")
    messages = tuple(Message(roles[i % 2], text) for i, text in enumerate(texts))
    save_conversation(path, SavedConversation(messages, "test", SamplingParameters()))
    assert load_conversation(path).messages == messages


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save_conversation(path, GOOD)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    assert (data["format"], data["version"]) == ("edgespec-chat", 1)


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "chat.json"
    save_conversation(path, GOOD)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EdgespecError, match=r"cannot write .*: No space left on device"):
        save_conversation(path, SavedConversation((), "other", SAMPLING))
    assert load_conversation(path) == GOOD
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_of_something_else_is_written_over_by_force_only(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("print()\n")
    with pytest.raises(UsageError, match="it is not JSON: /save! writes over it"):
        save_conversation(path, GOOD)
    assert path.read_text() == "print()\n"
    save_conversation(path, GOOD, force=True)
    assert load_conversation(path) == GOOD
    save_conversation(path, SavedConversation((), "other", SAMPLING))
    assert load_conversation(path).model == "other"


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(EdgespecError, match="cannot write"):
        save_conversation(tmp_path, GOOD)
    with pytest.raises(EdgespecError, match="cannot write"):
        save_conversation(tmp_path / "missing" / "chat.json", GOOD)


def _data(**changes: Any) -> str:
    good: dict[str, Any] = {
        "format": "edgespec-chat",
        "version": 1,
        "model": "test",
        "sampling": {},
        "messages": [{"role": "user", "content": "hi"}],
    }
    return json.dumps({**good, **changes})


def _message(role: Any, content: Any = "text") -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "{}",
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
        _data(format="other"),
        _data(version=2),
        _data(version=None),
        _data(model=None),
        _data(messages={}),
        _data(messages=["hi"]),
        _data(messages=[_message("user", None)]),
        _data(messages=[_message("user", "\ud800")]),
        _data(messages=[_message(1)]),
        _data(messages=[_message("assistant")]),
        _data(messages=[_message("tool")]),
        _data(messages=[_message("user"), _message("user")]),
        _data(messages=[_message("user"), _message("system")]),
        _data(messages=[_message("system"), _message("system")]),
        _data(sampling=None),
        _data(sampling={"heat": 1}),
        _data(sampling={"temperature": "hot"}),
        _data(sampling={"temperature": True}),
        _data(sampling={"temperature": -1}),
        _data(sampling={"temperature": float("nan")}),
        _data(sampling={"top_k": 1.5}),
        _data(sampling={"dry_breakers": "ab"}),
        _data(sampling={"dry_breakers": [1]}),
        _data(sampling={"dry_breakers": [""]}),
        _data(sampling={"mirostat": 1}),
        _data(sampling={"seed": 2**64}),
        _data(sampling={"logit_bias": []}),
        _data(sampling={"logit_bias": {"a": 1}}),
        _data(sampling={"logit_bias": {"1": "inf"}}),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match="is not a saved conversation") as caught:
        load_conversation(path)
    assert "\n" not in str(caught.value)


def test_other_bad_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        load_conversation(tmp_path / "missing")
    with pytest.raises(UsageError, match="not a regular file"):
        load_conversation(tmp_path)
    path = tmp_path / "chat.json"
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not a saved conversation"):
        load_conversation(path)
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UsageError, match="more than 16 MiB"):
        load_conversation(path)


ENTRIES = [
    Entry("user", "Grüße 👋🏽\n\n# not a heading", "t0"),
    Entry("assistant", "```py\nx = 1\n```\n", "t1", details={"model": "other", "tokens": 4}),
    Entry("user", "and?", "t2"),
]
FACTS = {"model": {"name": "test"}, "system": {"text": "Be brief."}}
WHOLE = Conversation("1ngtwrt", "t0", facts={**FACTS}, entries=ENTRIES)


def test_json_has_everything_and_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chat.JSON"
    path.write_text(exporter(path)(WHOLE), "utf-8")
    data = json.loads(path.read_text("utf-8"))
    assert (data["id"], data["title"], data["model"]) == ("1ngtwrt", "Grüße 👋🏽", "test")
    assert data["messages"][2]["details"]["tokens"] == 4
    loaded = load_conversation(path)
    expected = [Message("system", "Be brief."), *(Message(e.role, e.content) for e in ENTRIES)]
    assert list(loaded.messages) == expected


def test_markdown_names_who_speaks() -> None:
    text = exporter(Path("chat.md"))(WHOLE)
    headings = [line for line in text.split("\n") if line.startswith("## ")]
    assert headings == ["## System", "## You", "## other", "## You"]
    assert text.startswith("# Grüße 👋🏽\n")
    assert text.endswith("and?\n\n*(no answer)*\n")
    assert ENTRIES[1].content in text


@pytest.mark.parametrize("name", ["chat", "chat.txt", "json", ".md"])
def test_other_endings_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.json or \.md"):
        exporter(Path(name))
