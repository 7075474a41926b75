"""The whole command in a terminal, on a real model."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

Spawn = Callable[..., Any]
LONG = "Explain in detail how bread is made, step by step."
_READY = r"\x1b\[\?2004h"
FIRST_WORDS = r"\x1b\[2K\w"


def _context(shown: str) -> int:
    """Tokens in the context, out of the status line."""
    found = re.findall(r"\d+ tokens?, [\d.]+/s, [^\n]*, context (\d+)/\d+", shown)
    assert found, shown
    return int(found[-1])


def _plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def test_conversation(spawn: Spawn, tmp_path: Path) -> None:
    terminal = spawn("--max-tokens", "24", "--system", "Be brief.")
    assert "/help lists commands" in terminal.ready()
    first = _context(terminal.enter("Hello"))
    assert _context(terminal.enter("And what else?")) > first
    assert "of them from the cache" in terminal.enter("/stats")
    assert "max-tokens" in terminal.enter("/set")
    assert "max-tokens is 3 now" in terminal.enter("/set max-tokens 3")
    assert "cut off at 3 tokens" in terminal.enter(LONG)
    assert "did you mean /stats" in terminal.enter("/stat")

    file = tmp_path / "chat.json"
    assert "saved to" in terminal.enter(f"/save {file}")
    saved = json.loads(file.read_text("utf-8"))
    roles = [message["role"] for message in saved["messages"]]
    assert roles == ["system", *["user", "assistant"] * 3]
    full = _context(terminal.enter("/retry"))
    terminal.enter("/reset")
    assert _context(terminal.enter(LONG)) < full
    assert "3 messages of yours" in terminal.enter(f"/load {file}")
    assert _context(terminal.enter("/retry")) == full
    terminal.child.sendcontrol("d")
    assert terminal.leave() == 0


def test_ctrl_c_stops_an_answer_only(spawn: Spawn) -> None:
    terminal = spawn("--max-tokens", "600", "--allow-loops")
    terminal.ready()
    terminal.child.send(LONG + "\r")
    terminal.wait(FIRST_WORDS)
    terminal.child.send("typed too early")
    terminal.child.sendintr()
    shown = terminal.ready()
    assert "stopped" in shown
    assert "typed" not in shown  # in the middle of the answer
    stopped = _context(shown)
    assert "max-tokens is 8 now" in terminal.enter("\x15/set max-tokens 8")
    assert _context(terminal.enter("Go on.")) > stopped
    terminal.child.send("half a message")
    terminal.child.sendintr()
    assert "Ctrl-C again" not in terminal.ready()  # it discards what was typed
    terminal.child.sendintr()
    assert "Ctrl-C again" in terminal.ready()
    assert "takes no argument" in terminal.enter("/help me")  # the half message is gone
    terminal.child.sendintr()
    terminal.ready()
    terminal.child.sendintr()
    assert terminal.leave() == 0


def test_editing_and_history(spawn: Spawn, tmp_path: Path) -> None:
    terminal = spawn(NO_COLOR="1")
    terminal.ready()
    assert "system prompt: one\r\ntwo\r\nthree" in terminal.enter("/sys\tone\\\rtwo\x1b\rthree")
    terminal.child.sendcontrol("d")
    assert terminal.leave() == 0

    terminal = spawn(NO_COLOR="1")
    terminal.ready()
    _press_until_shown(terminal, "\x1b[A", "three")
    assert "system prompt: one\r\ntwo" in terminal.enter("")
    terminal.child.send("/bye\r")
    assert terminal.leave() == 0


def _press_until_shown(terminal: Any, key: str, text: str) -> None:
    """The file of the history is read while the line can be edited already."""
    for _ in range(60):
        terminal.child.send(key)
        if terminal.child.expect([text, pexpect.TIMEOUT], timeout=0.5) == 0:
            return
    raise AssertionError(terminal.child.before)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours(spawn: Spawn, variables: dict[str, str]) -> None:
    terminal = spawn("--max-tokens", "12", **variables)
    terminal.wait("Ctrl-D ends.*\n")
    terminal.wait("> ?")
    terminal.child.send("**Hello**\r")
    terminal.wait(r"Hello\*\*[^\n]*\n")
    shown = terminal.wait("context [0-9]+/[0-9]+\r\n")
    assert "\x1b" not in shown.split("\x1b[?2004l")[-1]
    terminal.wait("> ?")
    terminal.child.send("/list\r")
    shown = terminal.wait(r"\*\*Hello\*\*\r\n")
    assert "\x1b" not in shown.split("\x1b[?2004l")[-1]


def test_a_killed_conversation_goes_on(spawn: Spawn) -> None:
    terminal = spawn("--max-tokens", "600", "--allow-loops")
    terminal.ready()
    terminal.enter("/set max-tokens 8")
    terminal.enter("The first question")
    terminal.enter("/set max-tokens 600")
    terminal.child.send(LONG + "\r")
    terminal.wait(FIRST_WORDS)
    terminal.child.kill(signal.SIGKILL)
    terminal.child.wait()

    again = spawn("--resume", "--max-tokens", "8")
    shown = again.ready()
    assert "message 2" in shown
    assert f"> {LONG}" in shown
    assert "the last message has no answer yet: /retry asks again" in shown
    assert _context(again.enter("/retry")) > 20
    assert "The first question" in again.enter("/show")
    again.child.sendcontrol("d")
    assert "edgespec chat --resume" in again.wait("continues it")
    assert again.leave() == 0


def test_a_pasted_block_is_one_message(spawn: Spawn) -> None:
    terminal = spawn()
    terminal.ready()
    terminal.child.send("\x1b[200~/system one\ntwo\r\nthree\n\x1b[201~")
    assert "system prompt: one\r\ntwo\r\nthree\r\n" in _plain(terminal.enter(""))


def test_edit_without_an_editor_and_with_one(spawn: Spawn, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "Name a lake." > "$1"\n')
    editor.chmod(0o755)
    terminal = spawn("--max-tokens", "8")
    terminal.ready()
    terminal.enter("Name a")
    terminal.child.send("/edit\r")
    terminal.wait(_READY)
    _context(terminal.enter(" river."))
    terminal.child.send("/edit\r")
    terminal.wait(_READY)
    terminal.child.sendintr()
    assert "nothing was changed" in terminal.ready()
    terminal.child.sendcontrol("d")
    assert terminal.leave() == 0

    terminal = spawn("--resume", VISUAL=str(editor))
    assert "> Name a river." in terminal.ready()
    edited = terminal.enter("/edit")
    assert "> Name a lake." in edited
    _context(edited)
    shown = terminal.enter("/show")
    assert "> Name a lake." in shown
    assert "river" not in shown


def test_a_conversation_is_continued_and_its_model_is_known(spawn: Spawn) -> None:
    terminal = spawn("--max-tokens", "8", "--system", "Be brief.", "--ctx", "1024")
    terminal.ready()
    terminal.enter("Tell me a story about the sea and the ships on it. " * 25)
    terminal.child.sendcontrol("d")
    terminal.wait("continues it")
    assert terminal.leave() == 0
    again = spawn("--resume")
    shown = again.ready()
    found = re.search(r"restored (\d+) tokens from the cache", shown)
    assert found
    assert "context" in shown and "/1024" in shown
    assert re.search(r"max-tokens +8\r", _plain(again.enter("/set")))
    assert "system prompt: Be brief." in again.enter("/system")
    other = spawn("--resume")
    assert "is open in another chat: leave it there first" in other.wait("leave it there first")
    assert other.leave() == 2
    again.enter("And?")
    assert f"{found.group(1)} of them from the cache" in again.enter("/stats")


def test_ctrl_c_while_loading(spawn: Spawn) -> None:
    terminal = spawn()
    terminal.wait("Loading")
    terminal.child.sendintr()
    assert "edgespec: interrupted" in terminal.wait("edgespec: interrupted")
    assert terminal.leave() == 130
