"""The command without a terminal, on a real model."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.cli.main import main

Pipe = Callable[..., "subprocess.CompletedProcess[bytes]"]
GREEDY = ("--temperature", "0", "--max-tokens", "16")


@pytest.fixture
def pipe(default_model: Path, environment: dict[str, str]) -> Pipe:
    def run(command: str, *options: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "edgespec", command, str(default_model), *GREEDY, *options],
            input=text,
            env=environment,
            capture_output=True,
            timeout=60,
        )

    return run


def test_answers_are_those_of_run(pipe: Pipe) -> None:
    expected = pipe("run", "-p", "Name two fruits.").stdout
    done = pipe("chat", text=b"Name two fruits.\n/reset\n\n/nonsense\r\nName two\\\n fruits.")
    first, second = done.stdout[: len(expected)], done.stdout[len(expected) :]
    assert (done.returncode, first) == (0, expected)
    assert second.endswith(b"\n")
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stderr.count(b"there is no command /nonsense") == 1
    assert b"> " not in done.stdout


def test_input_that_is_not_utf8(pipe: Pipe) -> None:
    done = pipe("chat", text=b"/reset\n\xff\nhello\n")
    assert (done.returncode, done.stdout) == (2, b"")
    message = b"edgespec: standard input is not UTF-8 (byte 0xff in line 2): convert it first"
    assert done.stderr.splitlines()[-1] == message


def test_what_does_not_fit_is_mentioned_and_the_conversation_goes_on(pipe: Pipe) -> None:
    text = b"word " * 1000 + b"\n" + (b"word " * 60 + b"\n") * 4
    done = pipe("chat", "--ctx", "256", text=text)
    assert done.returncode == 1  # not every message was answered
    assert done.stderr.count(b"the context holds 256") == 1
    assert b"the model no longer sees the first 2 messages" in done.stderr
    assert done.stdout.count(b"\n") >= 4


def test_three_quotes_are_around_a_message_of_many_lines(pipe: Pipe) -> None:
    expected = pipe("run", "-p", "/set\n\nName two fruits.").stdout
    done = pipe("chat", text=b'"""\n/set\n\nName two fruits.\n"""\n/nonsense\n')
    assert (done.returncode, done.stdout) == (0, expected)
    assert b"/nonsense" in done.stderr


def test_ctrl_c_ends_it(default_model: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "edgespec", "chat", str(default_model)]
    child = subprocess.Popen(
        [*command, "--max-tokens", "1000", "--temperature", "0"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin and child.stdout
    child.stdin.write(b"Count from one to one hundred.\nAnd again.\n")
    child.stdin.flush()
    begun = child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    rest, errors = child.communicate(timeout=60)
    assert (child.returncode, errors.splitlines()[-1]) == (130, b"edgespec: interrupted")
    assert (begun + rest).endswith(b"\n")


def test_show_marks_origins(pipe: Pipe) -> None:
    done = pipe("chat", "--show", "--k", "3", text=b"Repeat: a b c a b c a b c\n")
    assert re.search(rb"\[[^]]+\]", done.stdout)
    assert b"origin of each token" in done.stderr


@pytest.mark.slow
def test_what_was_piped_is_stored_and_gone_on_with(pipe: Pipe, environment: dict[str, str]) -> None:
    def conversations() -> list[Path]:
        return sorted(Path(environment["XDG_DATA_HOME"]).rglob("*.jsonl"))

    assert pipe("chat", "--no-store", text=b"Hello\n").returncode == 0
    assert conversations() == []
    assert not Path(environment["XDG_DATA_HOME"]).exists()
    pipe("chat", "--system", "Be brief.", text=b"Hello\nAnd?\n")
    (path,) = conversations()
    done = pipe("chat", "--resume", path.stem, text=b"More\n/stats\n")
    assert done.returncode == 0
    assert conversations() == [path]
    assert path.read_text("utf-8").count('"type": "message"') == 3
    assert b"And?" in done.stderr  # what was said last
    before = path.read_bytes()
    done = pipe("chat", "--resume", "--no-store", text=b"More\n")
    assert (done.returncode, path.read_bytes()) == (0, before)


def test_an_unusable_folder_costs_one_line(pipe: Pipe, environment: dict[str, str]) -> None:
    Path(environment["XDG_DATA_HOME"]).write_text("not a folder")
    done = pipe("chat", text=b"Hello\nAnd?\n")
    assert done.returncode == 0
    assert done.stdout.count(b"\n") >= 2
    assert done.stderr.count(b"the conversation is not stored: ") == 1
    assert b"Not a directory" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--load", "/nonexistent.json"),
        ("--resume", "0000000"),
        ("--resume", "model.gguf"),
        ("--load", "x.json", "--resume"),
        ("--accept", "all"),
        ("--temperature", "nan"),
        ("--system", "\udcff"),
    ],
)
def test_wrong_calls(options: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chat", "no-such-model", *options])
    shown = capfd.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert len(shown.err.splitlines()) == 1
    assert "no-such-model" not in shown.err  # it was not even looked for
