"""A conversation without a model, and the command in a terminal of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest

from edgespec.chat.loop import Chat
from edgespec.runtime.session import Session

# The line editor switches bracketed paste on when it is ready, and off when a line was sent.
_READY, _DONE = r"\x1b\[\?2004h", r"\x1b\[\?2004l"


class RecordingScreen:
    """Keeps what would have been printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.width = 80

    def note(self, line: str) -> None:
        self.lines.append(line)

    def error(self, error: Exception) -> None:
        self.lines.append(f"error: {error}")


class Script:
    """Reads the given messages."""

    def __init__(self, *messages: str) -> None:
        self._messages = list(messages)

    def read(self) -> str:
        if not self._messages:
            raise EOFError
        return self._messages.pop(0)


@pytest.fixture
def chat() -> Chat:
    engine: Any = SimpleNamespace(
        template=None,
        model_name="test",
        drafter_name="ngram",
        decoder=SimpleNamespace(capacity=100),
    )
    screen: Any = RecordingScreen()
    return Chat(Session(engine), screen, interactive=True)


@pytest.fixture
def say(chat: Chat) -> Callable[..., list[str]]:
    """Give lines to the conversation; returns what was printed for them."""

    def give(*lines: str) -> list[str]:
        printed: list[str] = chat.screen.lines  # type: ignore[attr-defined]
        before = len(printed)
        chat.run(Script(*lines))
        return printed[before:]

    return give


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a child process: its own data folder, no cursor reports, no colour settings."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    return {
        **kept,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "TERM": "xterm-256color",
    }


class Terminal:
    """`edgespec chat` in a terminal of 24 lines by 80 columns."""

    def __init__(self, model: Path, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self.child: pexpect.spawn[str] = pexpect.spawn(
            sys.executable,
            ["-m", "edgespec", "chat", str(model), "--temperature", "0", *options],
            env=environment,  # type: ignore[arg-type]
            dimensions=(24, 80),
            timeout=60,
            encoding="utf-8",
        )

    def wait(self, pattern: str) -> str:
        """Everything that is printed until the pattern comes, and what it matched."""
        self.child.expect(pattern)
        return f"{self.child.before}{self.child.after}"

    def ready(self) -> str:
        """Everything that is printed until the next message can be typed."""
        return self.wait(_READY)

    def enter(self, keys: str) -> str:
        """Send a line; returns everything that is printed until the next can be typed."""
        self.child.send(keys + "\r")
        self.wait(_DONE)
        return self.ready()

    def leave(self) -> int | None:
        """Wait for the end; returns the exit status."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def spawn(default_model: Path, environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    """Start `edgespec chat` with options and environment variables."""
    terminals = []

    def start(*options: str, **variables: str) -> Terminal:
        terminals.append(Terminal(default_model, options, {**environment, **variables}))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.child.close(force=True)
