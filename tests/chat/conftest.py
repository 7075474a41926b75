"""A conversation on the real model, and the command in a terminal of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pexpect
import pytest

from edgespec.chat.archive import Archive
from edgespec.chat.conversation import Chat, Engines
from edgespec.chat.loop import run_loop
from edgespec.chat.recorder import CacheShelf
from edgespec.chat.screen import Screen
from edgespec.chat.view import PlainView
from edgespec.files import cache_root
from edgespec.runtime.engine import Engine
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.session import Session
from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters

# The line editor switches bracketed paste on when it is ready, and off when a line was sent.
_READY, _DONE = r"\x1b\[\?2004h", r"\x1b\[\?2004l"

OPTIONS = EngineOptions(threads=2, context=1024, draft="ngram", k=3, exact="bitwise")


class RecordingScreen(Screen):
    """Keeps what would have been printed."""

    def __init__(self) -> None:
        super().__init__(interactive=True)
        self.lines: list[str] = []
        self.sent: list[str] = []

    @property
    def width(self) -> int:
        return 80

    @property
    def dumb(self) -> bool:
        return False

    def answer(self, status: Callable[[], str], *, thinking: bool = False) -> PlainView:
        return PlainView(StringIO(), lambda piece: piece.text)

    def note(self, line: str) -> None:
        self.lines.append(line)

    def error(self, error: Exception) -> None:
        self.lines.append(f"error: {error}")

    def exchange(self, number: int, said: str, answer: str | None, last: int | None = None) -> None:
        self.lines.append(f"{number}. {said!r} -> {answer!r}")

    def send(self, sequence: str) -> None:
        self.sent.append(sequence)


class Script:
    """Reads the given messages, and revises as it is told."""

    def __init__(self, *messages: str, revision: str | None = None) -> None:
        self._messages = list(messages)
        self._revision = revision

    def read(self) -> str:
        if not self._messages:
            raise EOFError
        return self._messages.pop(0)

    def revise(self, text: str) -> str | None:
        return None if self._revision is None else self._revision.replace("OLD", text)


@pytest.fixture(scope="session")
def engine(default_model: Path) -> Iterator[Engine]:
    """With a context that is full soon."""
    with Engine(None, OPTIONS) as opened:
        yield opened


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "conversations")


@pytest.fixture
def new_chat(engine: Engine, archive: Archive, tmp_path: Path) -> Callable[..., Chat]:
    """Conversations in one archive, with answers of a few tokens."""

    def begin(*, store: bool = True, tokens: int = 8, lookup: bool = False) -> Chat:
        engines = Engines(lambda model, options: engine, None, OPTIONS)
        limits = GenerationLimits(max_tokens=tokens, overflow="shift")
        session = Session(engine, None, SamplingParameters(seed=1), limits)
        shelf = CacheShelf(tmp_path / "caches")
        return Chat(
            engines,
            session,
            RecordingScreen(),
            store=store,
            archive=archive,
            shelf=shelf,
            lookup=lookup,
        )

    return begin


@pytest.fixture
def chat(new_chat: Callable[..., Chat]) -> Chat:
    return new_chat()


def say_to(chat: Chat, *lines: str, revision: str | None = None) -> list[str]:
    """Give lines to a conversation; returns what was printed for them."""
    assert isinstance(chat.screen, RecordingScreen)
    before = len(chat.screen.lines)
    run_loop(chat, Script(*lines, revision=revision))
    return chat.screen.lines[before:]


@pytest.fixture
def tell() -> Callable[..., list[str]]:
    """`say` for any conversation."""
    return say_to


@pytest.fixture
def say(chat: Chat) -> Callable[..., list[str]]:
    """Give lines to the conversation; returns what was printed for them."""
    return lambda *lines, **options: say_to(chat, *lines, **options)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a child process: its own folders, no cursor reports, no colour settings, no editor.

    Compiled kernels and measurements are the ones of this process.
    """
    unwanted = ("NO_COLOR", "FORCE_COLOR", "VISUAL", "EDITOR", "DISPLAY", "WAYLAND_DISPLAY")
    kept = {k: v for k, v in os.environ.items() if k not in unwanted}
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("kernels", "measurements", "models"):
        (cache / name).symlink_to(cache_root() / name)
    return {
        **kept,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "EDGESPEC_CACHE": str(cache),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "TERM": "xterm-256color",
    }


class Terminal:
    """`edgespec chat` in a terminal of 24 lines by 80 columns."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.child: pexpect.spawn[str] = pexpect.spawn(
            sys.executable,
            ["-m", "edgespec", "chat", *arguments],
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
    """Start `edgespec chat` on the model, with options and environment variables.

    With --resume it is for the conversation to say which model.
    """
    terminals = []

    def start(*options: str, **variables: str) -> Terminal:
        named = () if "--resume" in options else (str(default_model), "--temperature", "0")
        terminals.append(Terminal((*named, *options), {**environment, **variables}))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.child.close(force=True)


class Tmux:
    """A real terminal of 24 lines by 80 columns."""

    def __init__(self, socket: Path, command: str, environment: dict[str, str]) -> None:
        self._tmux = [str(shutil.which("tmux")), "-S", str(socket), "-f", "/dev/null"]
        size = ("-x", "80", "-y", "24")
        # The shell stays, so that the screen does.
        begin = [*self._tmux, "new-session", "-d", *size, f"{command}; echo ENDED $?; sleep 600"]
        subprocess.run(begin, check=True, env=environment)

    def tmux(self, *command: str) -> str:
        """What a command of tmux's prints."""
        return subprocess.run(
            [*self._tmux, *command], check=True, capture_output=True, text=True
        ).stdout

    def keys(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type a line and send it."""
        self.keys("-l", text)
        self.keys("Enter")

    def paste(self, text: str) -> None:
        """Paste a text, bracketed where the program wants that."""
        subprocess.run([*self._tmux, "load-buffer", "-"], input=text, text=True, check=True)
        self.tmux("paste-buffer", "-p")

    def screen(self, *, scrolled: bool = False) -> str:
        """What is to be seen; with what has scrolled away if wanted."""
        return self.tmux("capture-pane", "-p", *(("-S", "-") if scrolled else ()))

    def wait(self, pattern: str, *, scrolled: bool = False) -> str:
        """The screen as soon as the pattern is there."""
        for _ in range(600):
            screen = self.screen(scrolled=scrolled)
            if re.search(pattern, screen, re.MULTILINE):
                return screen
            time.sleep(0.1)
        raise AssertionError(screen)

    def close(self) -> None:
        self.tmux("kill-server")


@pytest.fixture
def tmux(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., Tmux]]:
    """Run a command in a real terminal."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    terminals: list[Tmux] = []
    answering = {"PROMPT_TOOLKIT_NO_CPR": ""}  # this one does report where the cursor is

    def start(command: str) -> Tmux:
        socket = tmp_path / f"tmux{len(terminals)}"
        terminals.append(Tmux(socket, command, {**environment, **answering}))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()
