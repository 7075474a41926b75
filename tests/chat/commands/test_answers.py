from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.chat.conversation import Chat
from edgespec.chat.restore import load_saved
from edgespec.chat.savefile import SavedConversation
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
