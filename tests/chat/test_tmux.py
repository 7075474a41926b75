"""The whole command in a real terminal of 80 columns, on a real model."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

Start = Callable[..., Any]
CODE = "Write a python function that adds two numbers."
STATUS = r"^\d+ tokens?, [\d.]+/s, .*context \d+/\d+$"
READY = r"^>$"


@pytest.fixture
def start(tmux: Start, default_model: Path) -> Start:
    """`edgespec chat` with options and environment variables."""
    assert default_model  # it is there

    def begin(*options: str, **variables: str) -> Any:
        # Not by the environment: tmux sets TERM itself.
        changed = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command = [*changed, sys.executable, "-m", "edgespec", "chat", "--temperature", "0"]
        return tmux(shlex.join([*command, *options]))

    return begin


def _shown(screen: str) -> list[str]:
    return [line.rstrip() for line in screen.split("\n") if line.strip()]


def test_a_first_conversation(start: Start) -> None:
    terminal = start("--max-tokens", "300")
    terminal.wait(READY)
    terminal.type(CODE)
    growing = terminal.wait(STATUS)  # below the answer, while it comes
    assert re.search(STATUS, _shown(growing)[-1])
    screen = terminal.wait(STATUS + r"\n>", scrolled=True)
    assert len(re.findall(STATUS, screen, re.MULTILINE)) == 1  # the growing one is gone
    assert screen.count(CODE) == 1
    assert "[1] python" in screen
    assert "def add" in screen
    terminal.type("/li")
    assert "did you mean /list" in terminal.wait("did you mean")
    terminal.type("/list")
    assert re.search(
        r"^  1\* \w{7}  \d\d \w+ \d\d:\d\d   1  smollm2-135m  Write a python",
        terminal.wait("Write a python func.*\n>"),
        re.MULTILINE,
    )
    terminal.keys("C-d")
    terminal.wait("edgespec chat --resume .* continues it")
    terminal.wait("ENDED 0")


def test_a_code_block_reaches_the_clipboard_of_the_terminal(start: Start, tmp_path: Path) -> None:
    terminal = start("--max-tokens", "60")
    terminal.tmux("set-option", "-s", "set-clipboard", "on")
    terminal.wait(READY)
    terminal.type(CODE)
    terminal.wait(STATUS + r"\n>")
    terminal.type("/copy 1")
    terminal.wait("copied block 1, .* by the terminal")
    terminal.type(f"/write {tmp_path}/block.py")
    terminal.wait("is in ")
    copied = terminal.tmux("show-buffer")
    assert copied == (tmp_path / "block.py").read_text()
    assert copied.startswith("def ")


def test_pasted_and_wide_text(start: Start) -> None:
    terminal = start("--max-tokens", "4")
    terminal.wait(READY)
    terminal.paste("/system 語語語\n\n  second line 👋\n")
    terminal.wait("second line")
    terminal.keys("Enter")
    screen = terminal.wait(r"^system prompt: 語語語\n\n  second line 👋")
    assert screen.count("system prompt") == 1
    wide = "語" * 45
    terminal.type(f"Say {wide}")
    screen = terminal.wait(STATUS + r"\n>")
    assert max(map(cell_len, _shown(screen))) <= 80
    terminal.type("/list")
    screen = terminal.wait(r"1\* .*\n>")
    (line,) = [line for line in _shown(screen) if " 1* " in line]
    assert cell_len(line) < 80
    assert line.endswith("語...")


def test_typing_completes_commands_and_files(start: Start, tmp_path: Path) -> None:
    (tmp_path / "notes and more.txt").write_text("The sea is blue.")
    terminal = start("--max-tokens", "4", "--draft", "ngram")
    terminal.wait(READY)
    terminal.keys("/fi", "Tab")
    terminal.wait("^> /file")
    terminal.keys("-l", f"{tmp_path}/not")
    terminal.keys("Tab")
    terminal.wait(r"more\.txt$")
    terminal.keys("Enter")
    terminal.wait(r"notes and more\.txt, \d+ tokens, goes with the next")
    terminal.wait(r"^smollm2-135m, draft ngram, context 0/4096, with notes and more\.txt")
    terminal.type("What colour is the sea?")
    terminal.wait(r"^smollm2-135m, draft ngram, context [1-9]\d*/4096$")
    terminal.keys("/re", "Tab", "Tab")
    screen = terminal.wait("/retry")
    assert "/reset" in screen
    assert "/resume" in screen


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours(start: Start, variables: dict[str, str]) -> None:
    terminal = start("--max-tokens", "60", **variables)
    terminal.wait(READY)
    terminal.type(CODE)
    screen = terminal.wait(STATUS, scrolled=True)
    assert "```python" in screen
    terminal.type("/stats")
    assert "prefill" in terminal.wait("block length", scrolled=True)
