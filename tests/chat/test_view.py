from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest

from edgespec.chat.view import plain_view
from edgespec.runtime.decoder import Origin
from edgespec.runtime.piece import Piece

TMUX = shutil.which("tmux")
SCRIPT = Path(__file__).with_name("growing_answer.py")


def _answer() -> tuple[str, list[str]]:
    """Blocks of every kind, longer and shorter than the screen, and a mark in every line."""
    marks = [f"m{number:03d}" for number in range(170)]
    left = iter(marks)
    filler = "and some words so that it has to be wrapped " * 4
    blocks = [
        f"# {next(left)}",
        *(f"{next(left)} *some* words" for _ in range(10)),
        "\n".join(f"- {next(left)} item" for _ in range(50)),
        f"{next(left)} {filler}{next(left)}",
        "```python\n" + "\n".join(f"{next(left)} = 1" for _ in range(60)) + "\n```",
        "| a | b |\n| --- | --- |\n" + "\n".join(f"| {next(left)} | x |" for _ in range(5)),
        "\n".join(f"> {next(left)}\n>" for _ in range(3)),
    ]
    blocks += [f"{index}. {mark}" for index, mark in enumerate(left, 1)]
    return "\n\n".join(blocks), marks


@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
@pytest.mark.parametrize("before", [0, 30], ids=["top of the screen", "bottom of the screen"])
def test_each_line_is_on_the_terminal_once(tmp_path: Path, before: int) -> None:
    text, marks = _answer()
    (tmp_path / "answer.md").write_text(text, "utf-8")
    command = shlex.join([sys.executable, str(SCRIPT), str(tmp_path / "answer.md")])
    tmux = [str(TMUX), "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    lines = f"seq -f line%g {before}; {command}; sleep 60" if before else f"{command}; sleep 60"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", lines], check=True)
    try:
        screen = _wait_for(tmux, "THE END")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    assert {mark: screen.count(mark) for mark in marks} == dict.fromkeys(marks, 1)
    assert [screen.index(mark) for mark in marks] == sorted(screen.index(mark) for mark in marks)
    assert screen.count("line7\n") == (before > 0)


def _wait_for(tmux: list[str], end: str) -> str:
    for _ in range(300):
        capture = [*tmux, "capture-pane", "-p", "-S", "-"]
        screen = subprocess.run(capture, check=True, capture_output=True, text=True).stdout
        if end in screen:
            return screen
        time.sleep(0.1)
    raise AssertionError(screen)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [([], "\n"), (["a", "b"], "ab\n"), (["a\n"], "a\n"), (["a\n", "b"], "a\nb\n")],
)
def test_plain_view_ends_the_last_line(pieces: list[str], shown: str) -> None:
    out = StringIO()
    with plain_view(out) as show:
        for text in pieces:
            show(Piece(text, 0, Origin.PLAIN))
    assert out.getvalue() == shown
