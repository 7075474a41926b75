from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from edgespec.chat.reader import MessageHistory, TerminalReader, _Unjoined


def test_messages_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "data" / "history"
    first = MessageHistory(path)
    first.store_string("one")
    first.store_string("two\nlines \udcff")
    again = MessageHistory(path)
    assert list(again.load_history_strings()) == ["two\nlines \ufffd", "one"]
    assert first.problem is again.problem is None
    assert path.stat().st_mode & 0o077 == 0


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    history = MessageHistory(None)
    history.append_string("one")
    assert history.get_strings() == ["one"]
    assert list(history.load_history_strings()) == []
    assert (history.problem, list(tmp_path.iterdir())) == (None, [])


def test_an_unusable_file_costs_the_history_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    history = MessageHistory(tmp_path / "file" / "history")
    assert history.problem
    history.store_string("one")
    assert list(history.load_history_strings()) == []


def test_a_full_disk_costs_the_history_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: FileHistory, string: str) -> NoReturn:
        raise OSError(28, "No space left on device")

    history = MessageHistory(tmp_path / "history")
    monkeypatch.setattr(FileHistory, "store_string", full)
    history.store_string("one")
    assert "No space left on device" in str(history.problem)


def test_it_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    (tmp_path / "file").touch()
    reader = TerminalReader(
        tmp_path / "file" / "x", lambda text: iter(()), str, warnings.append, warnings.append
    )
    monkeypatch.setattr(reader._session, "prompt", lambda: "hello")
    assert [reader.read(), reader.read()] == ["hello", "hello"]
    assert len(warnings) == 1
    assert "not remembered" in warnings[0]


def typed(keys: str) -> list[str]:
    """What a terminal reads until the user leaves; notes are in brackets."""
    said: list[str] = []
    with create_pipe_input() as source, create_app_session(source, DummyOutput()):
        source.send_text(keys)
        reader = TerminalReader(
            None, lambda text: iter(()), str, lambda line: said.append(f"[{line[:6]}]"), said.append
        )
        while True:
            try:
                said.append(reader.read())
            except EOFError:
                return said


@pytest.mark.parametrize(
    ("keys", "read"),
    [
        ("hello\r\x04", ["hello"]),
        ("one\x03two\r\x04", ["two"]),
        ("one\x03two\x03\x04", []),
        ("one\x03\x03\x03", ["[Ctrl-C]"]),
        ("\x03one\x03\x03two\r\x04", ["[Ctrl-C]", "[Ctrl-C]", "two"]),
        ('"""one\rtwo"""\r\x04', ["one\ntwo"]),
        ('"""\r/one\r\r"""\r\x04', ["//one"]),
        ('say """hi\r\x04', ['say """hi']),
        ("one\\\rtwo\r\x04", ["one\ntwo"]),
    ],
)
def test_keys(keys: str, read: list[str]) -> None:
    assert typed(keys) == read


def test_joined_emoji_are_sent_as_they_were_typed_and_shown_side_by_side() -> None:
    family = "a \U0001f469\u200d\U0001f467 b"
    assert typed(f"{family}\r\x04") == [family]
    fragments: Any = [("", family)]
    given: Any = SimpleNamespace(fragments=fragments)
    shown = _Unjoined().apply_transformation(given)
    assert "".join(fragment[1] for fragment in shown.fragments) == "a \U0001f469\U0001f467 b"
    places = range(len(family) + 1)
    assert [shown.source_to_display(place) for place in places] == [0, 1, 2, 3, 3, 4, 5, 6]
    assert [shown.display_to_source(place) for place in range(7)] == [0, 1, 2, 4, 5, 6, 7]
