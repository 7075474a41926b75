"""Requests that nobody should send: refused in one line, and the server goes on."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import threading
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
from pydantic import ValidationError
from pydantic_core import from_json

from edgespec.server import errors, running
from edgespec.server.errors import ApiError, parse
from edgespec.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponseRequest,
)

CHAT = "/v1/chat/completions"


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **more}


@pytest.fixture(autouse=True)
def still_there(server: Any) -> Iterator[None]:
    yield
    assert server.post(CHAT, chat()).status_code == 200
    assert server.service.admission.waiting == server.service.engine.waiting == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"\0" * 1000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": true}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "5"}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1.5}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "seed": 1' + b"0" * 50 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "top_k": 99999999999}',
        b'{"messages": [{"role": "user", "content": "x"}], "presence_penalty": -1e122}',
        b'{"messages": {"role": "user", "content": "x"}}',
        b'{"messages": [{"role": "user", "content": 5}]}',
        b'{"messages": [{"role": "user"}], "logit_bias": {"5": Infinity}}',
    ],
)
def test_bodies(server: Any, content: bytes) -> None:
    for path in (CHAT, "/v1/completions"):
        response = httpx.post(server.url + path, content=content, timeout=60)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["message"] and len(error["message"]) < 500 and "\n" not in error["message"]
        assert "Traceback" not in response.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"messages": [{"role": "user", "content": "x"}] * 2049}, "2048"),
        ({"stop": ["x" * 1001]}, "1000"),
        ({"tools": [{}] * 129}, "128"),
        ({"schema": {"enum": ["x" * 300_000]}}, "characters"),
        ({"schema": {"type": "string", "minLength": 10**30}}, "minLength"),
        ({"schema": {"type": "unheard-of"}}, "unheard-of"),
        ({"schema": {"$ref": "http://127.0.0.1:9/x"}}, "nothing is fetched"),
        ({"schema": {"$ref": "#/$defs/missing"}}, "leads to nothing"),
    ],
)
def test_too_much_of_something(server: Any, given: Any, words: str) -> None:
    if "schema" in given:
        schema = {"name": "x", "schema": given["schema"]}
        given = {"response_format": {"type": "json_schema", "json_schema": schema}}
    response = server.post(CHAT, chat(**given))
    assert response.status_code == 400, response.text
    assert words in response.json()["error"]["message"]


def test_a_bias_that_forbids_everything(server: Any) -> None:
    bias = {str(token): -100 for token in range(server.service.engine.vocabulary.size)}
    response = server.post(CHAT, chat(logit_bias=bias))
    assert response.status_code == 400
    assert "relax the logit bias" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "pattern",
    [
        "^a]$",
        "^((((a{0,30}){0,30}){0,30}){0,30})$",
        "^a{300000000}$",
        f"^{'(' * 26}a?){'{2})' * 25}$",
    ],
)
def test_patterns_that_kept_the_server(server: Any, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    began = time.monotonic()
    response = server.post(CHAT, chat(response_format=wanted, max_tokens=5))
    assert response.status_code == 200 or "too complex" in response.text, response.text
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "rules",
    [
        'root ::= "a" root "b"? | "a" root | ""',
        'root ::= ((("a"{1,30}){1,30}){1,30})',
        "root ::= " + "(" * 25 + '"a"?' + "{2})" * 25,
    ],
)
def test_rules_that_kept_the_server(server: Any, rules: str) -> None:
    """Others are answered meanwhile, and who leaves leaves nothing behind."""
    before = set(psutil.Process().children())
    with contextlib.suppress(httpx.TimeoutException):
        httpx.post(f"{server.url}{CHAT}", json=chat(grammar=rules, max_tokens=40), timeout=0.5)
    assert server.post(CHAT, chat()).status_code == 200
    response = server.post(CHAT, chat(grammar=rules, max_tokens=40))
    assert response.status_code == 200 or "the grammar" in response.text, response.text
    assert server.post(CHAT, chat(grammar='root ::= "a"')).status_code == 200
    assert len(set(psutil.Process().children()) - before) <= 2


def test_a_schema_nested_deeply(server: Any) -> None:
    schema: dict[str, Any] = {}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert server.post(CHAT, chat(response_format=wanted)).status_code in (200, 400)


def test_what_a_prompt_may_hold(server: Any) -> None:
    for text in ("\0", "\u202e\ufeff\uffff", "<|im_end|><|endoftext|>", "{{ 7 * 7 }}", "%s\r\n"):
        messages = [{"role": "user", "content": text}]
        response = server.post(CHAT, chat(messages=messages, stream=True))
        assert response.text.endswith("data: [DONE]\n\n")


ITEMS = {
    "prompt": ("/v1/completions", "1.5,"),
    "messages": (CHAT, "0,"),
    "tools": (CHAT, '"",'),
    "stop": (CHAT, "0,"),
    "input": ("/v1/responses", "[],"),
    "tokens": ("/detokenize", '"a",'),
}
SIZE = (4 << 20) - 1000


def wrong_body(number: int) -> tuple[str, bytes]:
    """A path, and a body of nearly 4 MiB for it that is wrong in every item."""
    if number % 7 == 6:
        pairs = "".join(f'"x{n}":"y",' for n in range(SIZE // 15))
        return CHAT, b'{"messages": [{"role": "user"}], "logit_bias": {%s"z":0}}' % pairs.encode()
    field = list(ITEMS)[number % 7]
    path, item = ITEMS[field]
    rest = '"messages": [{"role": "user", "content": "x"}], ' * (field in ("tools", "stop"))
    return path, f'{{{rest}"{field}": [{item * (SIZE // len(item))}0]}}'.encode()


@pytest.mark.parametrize("sent", [14, pytest.param(300, marks=pytest.mark.slow)])
def test_large_bodies_that_are_wrong(server: Any, sent: int) -> None:
    """Each is refused by its first error, while the server answers others."""
    bodies = [wrong_body(number) for number in range(7)]
    delays: list[float] = []
    done = threading.Event()

    def ask() -> None:
        while not done.wait(0.05):
            began = time.monotonic()
            httpx.get(f"{server.url}/health", timeout=60).raise_for_status()
            delays.append(time.monotonic() - began)

    def send(number: int) -> int:
        path, content = bodies[number % 7]
        return httpx.post(server.url + path, content=content, timeout=120).status_code

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with ThreadPoolExecutor(4) as senders:
            statuses = list(senders.map(send, range(sent)))
    finally:
        done.set()
        asking.join()
    assert statuses == [400] * sent
    # Of a shared machine; one such body held the loop for 18 s.
    assert max(delays) < 5


def test_a_body_is_read_without_looking_for_garbage() -> None:
    """That went through all objects of the process, over and over, with the loop held up."""
    _, lists = wrong_body(4)
    collected: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(phase)

    gc.callbacks.append(note)
    try:
        with pytest.raises(ApiError) as caught:
            parse(ResponseRequest, lists)
        assert not collected
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    kept = [value for frame in frames[1:] for value in frame.f_locals.values()]
    assert all(not isinstance(value, (dict, list)) for value in kept)


def test_what_a_wrong_body_leaves_in_memory() -> None:
    """Objects of errors would be ten times the body."""
    for number in range(7):
        path, content = wrong_body(number)
        shape = {CHAT: ChatRequest, "/v1/completions": CompletionRequest}.get(path)
        shape = shape or (ResponseRequest if "responses" in path else DetokenizeRequest)
        value = from_json(content)
        tracemalloc.start()
        with pytest.raises(ValidationError) as caught:
            shape.model_validate(value)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
        assert caught.value.error_count() < 10


def test_a_body_that_is_too_long(serve: Any) -> None:
    with serve(body=2000) as small:
        long = json.dumps(chat(padding="x" * 2000)).encode()
        whole = httpx.post(small.url + CHAT, content=long)
        parts = httpx.post(
            small.url + CHAT, content=iter([long[:900], long[900:1800], long[1800:]])
        )
        for response in (whole, parts):
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "too_large"
        fits = json.dumps(chat(padding="x" * 1000)).encode()
        assert httpx.post(small.url + CHAT, content=fits, timeout=60).status_code == 200
        with socket.create_connection(small.address, timeout=30) as endless:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            endless.sendall(head + b"Content-Length: 1000000000000\r\n\r\n" + b"x" * 40_000)
            assert b"413" in endless.makefile("rb").readline()


def test_bodies_and_headers_that_do_not_come(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(errors, "_BODY_SECONDS", 0.1)
    monkeypatch.setattr(running, "_PATIENCE_S", 0.1)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    with serve() as hasty:
        with socket.create_connection(hasty.address, timeout=30) as silent:
            assert silent.recv(100) == b""
        with socket.create_connection(hasty.address, timeout=30) as half:
            half.sendall(head)
            with contextlib.suppress(ConnectionResetError):
                assert half.recv(100) == b""
        with socket.create_connection(hasty.address, timeout=30) as late:
            late.sendall(head + b"\r\n{")
            assert b"408" in late.makefile("rb").readline()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http(server: Any, data: bytes) -> None:
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(data)
        assert b" 4" in connection.makefile("rb").readline()


def test_an_upgrade_is_not_taken(server: Any) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert httpx.get(f"{server.url}/health", headers=headers).status_code == 200
