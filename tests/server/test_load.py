"""Many clients, slow ones, ones that go away: nothing stays taken, and the others get served."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from edgespec import GenerationLimits, SamplingParameters
from edgespec.server import running as running_module

PATH = "/v1/completions"


def until(condition: Callable[[], bool]) -> None:
    """Wait for it; it has to come within a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.fixture
def single(serve: Any) -> Iterator[Any]:
    """A server with one turn and one place to wait; idle and well at the end."""
    with serve(parallel=1, queue=1) as running:
        yield running
        idle(running)


def idle(running: Any) -> None:
    admission, engine = running.service.admission, running.service.engine
    until(lambda: admission.running == admission.waiting == engine.waiting == 0)
    for name in ("running", "waiting", "engine_waiting"):
        assert running.gauge(f"edgespec_{name}") == 0
    answer = running.post(PATH, {"prompt": "The sea", "max_tokens": 2})
    assert answer.json()["usage"]["completion_tokens"] == 2


def long(endless: Any, **more: Any) -> dict[str, Any]:
    own = {"edgespec": {"allow_loops": True}}
    return {"prompt": "The sea is", "logit_bias": endless, "stream": True, **own, **more}


def raw(running: Any, body: dict[str, Any], **options: int) -> socket.socket:
    """A connection on which a request was sent."""
    connection = socket.socket()
    for option, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    connection.settimeout(60)
    connection.connect(running.address)
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def test_many_clients_get_what_each_would_get_alone(serve: Any, engine: Any) -> None:
    prompts = [f"Item {number} of the list is" for number in range(12)]
    limits = GenerationLimits(max_tokens=8)
    greedy = SamplingParameters(temperature=0.0)
    expected = [engine.generate(prompt, greedy, limits).result.text for prompt in prompts]
    with serve(parallel=3, queue=16) as running:

        def ask(prompt: str) -> str:
            body = {"prompt": prompt, "max_tokens": 8}
            text: str = running.post(PATH, body).json()["choices"][0]["text"]
            return text

        with ThreadPoolExecutor(len(prompts)) as pool:
            assert list(pool.map(ask, prompts)) == expected
        idle(running)


def test_a_full_queue_is_said_so(single: Any, endless: Any) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        httpx.stream("POST", single.url + PATH, json=long(endless), timeout=60) as first,
    ):
        lines = first.iter_lines()
        next(lines)
        second = pool.submit(single.post, PATH, {"prompt": "One", "max_tokens": 2})
        until(lambda: single.gauge("edgespec_waiting") == 1)
        third = single.post(PATH, {"prompt": "Two", "max_tokens": 2})
        assert third.status_code == 429
        assert int(third.headers["retry-after"]) >= 1
        assert third.json()["error"]["type"] == "rate_limit_error"
        first.close()
        assert second.result().json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_in_the_middle(single: Any, endless: Any, stream: bool) -> None:
    connection = raw(single, long(endless, stream=stream))
    if stream:
        assert connection.recv(1000)
    until(lambda: bool(single.service.admission.running))
    connection.close()
    idle(single)


def test_a_client_that_goes_away_while_it_waits(single: Any, endless: Any) -> None:
    admission = single.service.admission
    with httpx.stream("POST", single.url + PATH, json=long(endless), timeout=60) as first:
        lines = first.iter_lines()
        next(lines)
        waiting = raw(single, {"prompt": "One", "max_tokens": 2})
        until(lambda: bool(admission.waiting == 1))
        waiting.close()
        until(lambda: bool(admission.waiting == 0))
        assert admission.running == 1  # it did not wait for that
        next(lines)


def test_a_client_that_goes_away_while_its_prompt_is_read(single: Any) -> None:
    connection = raw(single, {"prompt": "one two three four " * 200, "max_tokens": 50})
    until(lambda: bool(single.service.admission.running))
    before = single.gauge("edgespec_generated_tokens_total")
    connection.close()
    until(lambda: not single.service.admission.running)
    assert single.gauge("edgespec_generated_tokens_total") == before


def test_who_does_not_read_holds_up_nobody(serve: Any, endless: Any) -> None:
    bulky = long(endless, max_tokens=160, logprobs=20)
    with serve(parallel=1, queue=1, send_buffer=4096) as running:
        slow = raw(running, bulky, SO_RCVBUF=4096)
        until(lambda: bool(running.service.admission.running))
        other = running.post(PATH, {"prompt": "One two", "max_tokens": 4})  # waits for its turn
        assert other.json()["usage"]["completion_tokens"] == 4
        idle(running)
        with slow, slow.makefile("rb") as file:
            events = [line for line in file_lines(file) if line.startswith(b"data: ")]
    assert events[-1] == b"data: [DONE]\n"
    chunks = [json.loads(line[6:]) for line in events[:-1]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    tokens = [t for c in chunks for t in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
    assert len(tokens) == 160


def file_lines(file: Any) -> Iterator[bytes]:
    """Lines of a chunked response, up to the last event."""
    for line in file:
        yield line
        if line == b"data: [DONE]\n":
            return


def test_the_time_limit_ends_an_answer_with_what_it_has(serve: Any, endless: Any) -> None:
    with serve(seconds=0.5) as hasty:
        events = hasty.post(PATH, long(endless)).text.split("\n\n")
        last = json.loads(events[-3].removeprefix("data: "))
        assert events[-2] == "data: [DONE]"
        assert last["choices"][0]["finish_reason"] == "length"
        assert last["edgespec"]["finish_reason"] == "cancelled"
    with serve(seconds=0.001) as none:
        refused = none.post(PATH, {"prompt": "one two three four " * 200})
        assert refused.status_code == 504
        assert refused.json()["error"]["code"] == "timeout"


@pytest.mark.parametrize(("grace", "reason"), [(0.0, "cancelled"), (600.0, "length")])
def test_stopping(serve: Any, endless: Any, grace: float, reason: str) -> None:
    with (
        serve(grace=grace) as running,
        httpx.stream(
            "POST", running.url + PATH, json=long(endless, max_tokens=60), timeout=60
        ) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        running.server.stop()
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["edgespec"]["finish_reason"] == reason
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/health")


def test_health_among_many_connections(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "_CONNECTIONS", 8)
    with serve() as running, ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(running.address))
        until(lambda: len(running.server.server_state.connections) == 8)
        assert httpx.get(f"{running.url}/health").status_code == 200
        refused = httpx.get(f"{running.url}/v1/models")
        assert refused.status_code == 503 and "connections" in refused.json()["error"]["message"]


def test_figures_for_prometheus(serve: Any) -> None:
    with serve() as running:
        body = {"prompt": "Count: one two three one two three one two three", "max_tokens": 24}
        usage = running.post(PATH, body).json()["usage"]
        running.post(PATH, {"prompt": 5})
        httpx.get(f"{running.url}/secret/path")
        text = httpx.get(f"{running.url}/metrics").text
        assert 'edgespec_requests_total{path="/v1/completions",status="200"} 1.0' in text
        assert 'edgespec_requests_total{path="/v1/completions",status="400"} 1.0' in text
        assert 'edgespec_requests_total{path="other",status="404"} 1.0' in text
        assert "secret" not in text
        assert running.gauge("edgespec_generated_tokens_total") == usage["completion_tokens"]
        assert running.gauge("edgespec_accepted_tokens_total") > 0
        assert running.gauge("edgespec_decode_seconds_count") == 1
