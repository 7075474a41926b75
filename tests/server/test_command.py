"""`edgespec serve` as a process: its line, its signals, and calls that are wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from edgespec.cli.main import main

SMALL = ("--ctx", "512", "--threads", "2", "--draft", "none", "--port", "0")


@contextmanager
def process(model: Path, *arguments: str, **environment: str) -> Iterator[Any]:
    """The running command, with `url` from its line."""
    command = [sys.executable, "-m", "edgespec", "serve", str(model), *SMALL, *arguments]
    one: Any = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        line = one.stdout.readline()
        assert line.startswith("Serving "), one.stderr.read()
        one.url = line.split()[-1]
        yield one
    finally:
        one.kill()
        one.communicate()


def ended(one: Any) -> tuple[int, str]:
    _, errors = one.communicate(timeout=60)
    return one.returncode, errors


def test_sigterm_lets_answers_finish(default_model: Path) -> None:
    body = {"prompt": "The sea is", "max_tokens": 40, "stream": True}
    with process(default_model, "--grace", "60") as one:
        assert one.url.startswith("http://127.0.0.1:")
        with httpx.stream("POST", f"{one.url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            one.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert ended(one) == (0, "")


def test_the_second_ctrl_c_ends_at_once_and_the_key_is_never_said(default_model: Path) -> None:
    body = {"prompt": "The sea is", "logit_bias": {"2": -100, "0": -100}, "stream": True}
    body |= {"edgespec": {"allow_loops": True}, "max_tokens": -1}
    key = "correct-horse-battery"
    with process(default_model, "--grace", "600", "--ctx", "4096", EDGESPEC_API_KEY=key) as one:
        assert httpx.get(f"{one.url}/v1/models").status_code == 401
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{one.url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            one.send_signal(signal.SIGINT)
            while is_accepting(one.url):
                next(lines)
            one.send_signal(signal.SIGINT)
            status, errors = ended(one)
    assert status == 130
    assert errors == "" and key not in one.url


_DOUBLING = "\n".join(f"r{i} ::= r{i + 1} | r{i + 1} r{i + 1}" for i in range(40))
BOMBS: dict[str, dict[str, Any]] = {
    "rules that double": {"grammar": f'root ::= r0\n{_DOUBLING}\nr40 ::= "a"'},
    "repetitions of repetitions": {"grammar": 'root ::= (((("a"{0,30}){0,30}){0,30}){0,30})'},
    "a schema's counts": {"json_schema": {"pattern": "^((((a{0,30}){0,30}){0,30}){0,30})$"}},
    "a schema's names": {
        "json_schema": {
            "type": "object",
            "properties": {"n" * 60_000 if i == 0 else f"p{i}": {} for i in range(2500)},
        }
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_sigterm_while_a_bomb_is_prepared(default_model: Path, name: str) -> None:
    """The limit is far above the grace period of a second, and below what a bomb would take."""
    body = {"prompt": "The sea is", "max_tokens": 200, **BOMBS[name]}
    with process(default_model, "--grace", "1", "--timeout", "600") as one:
        children = psutil.Process(one.pid)
        with ThreadPoolExecutor(3) as senders:
            asked = [senders.submit(outcome, one.url, body) for _ in range(3)]
            while not all(future.done() for future in asked):
                if gauge(one.url, "waiting") + gauge(one.url, "running"):
                    break
            workers = children.children(recursive=True)
            one.send_signal(signal.SIGTERM)
            status, errors = ended(one)
        assert status == 0
        assert errors.strip() == "" or errors.startswith("Compiling kernels")
        assert {future.result() for future in asked} <= {0, 200, 400, 500, 503, 504}
        _, left = psutil.wait_procs(workers, timeout=20)
        assert not left


def outcome(url: str, body: Any) -> int:
    """The status of an answer; 0 if the connection ended without one."""
    try:
        return httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code
    except httpx.TransportError:
        return 0


def gauge(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=60).text
    (line,) = (line for line in text.splitlines() if line.startswith(f"edgespec_{name} "))
    return float(line.split()[1])


def is_accepting(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_ctrl_c_when_idle(default_model: Path) -> None:
    with process(default_model, "--port", "0") as one:
        assert httpx.get(f"{one.url}/health").json() == {"status": "ok"}
        one.send_signal(signal.SIGINT)
        assert ended(one) == (130, "")


@pytest.fixture
def failed(capsys: Any) -> Callable[..., tuple[int, str]]:
    """The status and the line of a call that fails, in this process."""

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["serve", *arguments])
        told = capsys.readouterr()
        lines = told.err.splitlines()
        assert len(lines) == 1 and told.out == "", told
        return int(str(ended.value.code)), lines[0]

    return call


def test_a_port_in_use(failed: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        status, line = failed("--port", port)
    assert status == 1
    assert port in line and "--port" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "EDGESPEC_API_KEY"),
        (["--host", "nowhere.invalid", "--api-key", "x"], "no such address"),
        (["--port", "99999"], "65535"),
        (["--allow-origin", "*"], "no origin"),
        (["--queue", "-1"], "queue is -1"),
        (["--parallel", "0"], "parallel is 0"),
        (["--timeout", "nan"], "timeout is nan"),
        (["--max-body", "0"], "max-body"),
        (["--grace", "-1"], "grace is -1"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--api-key", "with space"], "API key"),
        (["--allow-origin", "https://*.example.org"], "no origin"),
        (["--max-tokens", "0"], "max-tokens"),
        (["--overflow", "wrap"], "overflow"),
        (["--chat-template", "/nowhere.jinja"], "nowhere"),
    ],
)
def test_wrong_calls(failed: Any, arguments: list[str], words: str) -> None:
    status, line = failed(*arguments)
    assert status == 2, line
    assert words in line


def test_a_key_from_a_file(failed: Any, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("not one word\n")
    assert "API key" in failed("--api-key-file", str(file))[1]
    assert "No such file" in failed("--api-key-file", str(tmp_path / "none"))[1]


def test_what_can_be_set(default_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "short.jinja"
    template.write_text("\ufeff{% for m in messages %}<{{ m.content }}>{% endfor %}")
    arguments = ("--alias", "my-model", "--max-tokens", "2", "--overflow", "shift", "--no-ui")
    with process(default_model, *arguments, "--chat-template", str(template)) as one:
        assert httpx.get(f"{one.url}/v1/models").json()["data"][0]["id"] == "my-model"
        assert httpx.get(one.url).status_code == 404
        messages = [{"role": "user", "content": "hi"}]
        body = {"messages": messages}
        shown = httpx.post(f"{one.url}/apply-template", json=body).json()
        assert shown == {"prompt": "<hi>"}
        answer = httpx.post(f"{one.url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["model"] == "my-model"
        assert answer["usage"]["completion_tokens"] == 2
