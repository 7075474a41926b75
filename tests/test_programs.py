"""The programs in the pages are run as they are printed there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT, program

pytestmark = pytest.mark.slow

LONG_S = 120

# Presses the keys of the window: a long answer is stopped, a short one read, and it is closed.
USER = """
import tkinter

START = tkinter.Tk.mainloop


def use(window):
    def ask(question, then):
        window.entry.focus_force()
        window.update()
        window.entry.insert(0, question)
        window.entry.event_generate("<Return>")
        wait(lambda: window.stop["state"] == "normal", then)

    def wait(condition, then):
        if condition():
            then()
        else:
            window.after(10, wait, condition, then)

    def shown():
        return window.text.get("1.0", "end")

    def stop():
        wait(lambda: len(shown()) > 90, window.stop.invoke)
        wait(lambda: window.stop["state"] == "disabled", again)

    def again():
        assert window.turn.result.finish_reason == "cancelled"
        ask("Name a river.", lambda: wait(lambda: window.stop["state"] == "disabled", last))

    def last():
        assert window.turn.result.finish_reason != "cancelled"
        roles = [message.role for message in window.session.messages]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        for message in window.session.messages[1:]:
            assert message.content in shown()
        assert window.text.yview()[1] == 1.0  # it scrolls
        bottom = window.entry.winfo_rooty() + window.entry.winfo_height()
        assert bottom <= window.winfo_rooty() + window.winfo_height()
        ask("Tell me another long story.", lambda: wait(lambda: shown()[-30:], window.destroy))

    ask("Tell me a long story about the sea.", stop)


def mainloop(window, n=0):
    window.report_callback_exception = lambda *error: (window.destroy(), sys.excepthook(*error))
    window.after(0, use, window)
    START(window, n)
    print("closed")


import sys
tkinter.Tk.mainloop = mainloop
"""


@pytest.fixture
def run(default_model: Path, tmp_path: Path) -> Callable[..., str]:
    def run_program(text: str) -> str:
        script = tmp_path / "program.py"
        script.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done.stdout

    return run_program


@pytest.fixture
def display() -> Iterator[str]:
    """Of a screen in memory."""
    pytest.importorskip("tkinter")
    if shutil.which("Xvfb") is None:
        pytest.skip("there is no Xvfb, so that no window can be shown")
    command = ["Xvfb", "-displayfd", "1", "-screen", "0", "800x600x24", "-nolisten", "tcp"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield f":{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def test_import(run: Callable[..., str]) -> None:
    assert run(program("import")).strip()


def test_conversation(run: Callable[..., str]) -> None:
    lines = run(program("conversation")).splitlines()
    assert lines[0]
    assert re.fullmatch(r"\d+ of \d+ proposed tokens were accepted", lines[-1])


def test_asyncio(run: Callable[..., str]) -> None:
    assert "\nuntil then: " in run(program("asyncio"))


def test_embeddings(run: Callable[..., str]) -> None:
    near, far = map(float, run(program("embeddings")).split())
    assert 1 > near > far > 0


def test_extraction(run: Callable[..., str]) -> None:
    assert run(program("extraction")) == "Ada Larsen 42 Oslo\n"


def test_drop_in(run: Callable[..., str]) -> None:
    ours = program("drop-in")
    first, second = run(ours).split("\n", 1)
    assert first and second.strip()


def test_window(run: Callable[..., str], display: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", display)
    assert run(USER + program("window")) == "closed\n"
