"""Servers in threads of this process, on free ports, all with one engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from edgespec import Engine, EngineOptions, SamplingParameters
from edgespec.server.app import Limits, Service, make_app
from edgespec.server.generating import Defaults
from edgespec.server.guard import Access
from edgespec.server.running import Server, open_socket

OPTIONS = EngineOptions(draft="ngram", threads=2, context=1024, k=3, exact="bitwise")
DEFAULTS = Defaults(SamplingParameters(temperature=0.0))

TOOLS_TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass
class Running:
    """A server, and how to reach it."""

    service: Service
    server: Server
    address: tuple[str, int]

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60, **options)

    def gauge(self, name: str) -> float:
        """A figure of /metrics."""
        text = httpx.get(f"{self.url}/metrics").text
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
        return float(line.split()[1])


@contextmanager
def running(engine: Engine, **options: Any) -> Iterator[Running]:
    access = options.pop("access", Access())
    recent, pooling = options.pop("recent", 0), options.pop("pooling", None)
    send_buffer = options.pop("send_buffer", None)
    service = Service(
        engine,
        options.pop("defaults", DEFAULTS),
        access,
        Limits(**{"grace": 0.0, **options}),
        recent=recent,
        pooling=pooling,
    )
    listener = open_socket("127.0.0.1", 0)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    address = listener.getsockname()[:2]
    started = threading.Event()
    server = Server(make_app(service), service.admission, service.limits.grace, started.set)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        assert started.wait(30)
        yield Running(service, server, address)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def engine(default_model: Path) -> Iterator[Engine]:
    with Engine(default_model, OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="session")
def serve(engine: Engine) -> Callable[..., Any]:
    """`with serve(LIMITS...) as running`: a server with the shared engine."""
    return lambda **options: running(options.pop("engine", engine), **options)


@pytest.fixture(scope="session")
def server(engine: Engine) -> Iterator[Running]:
    with running(engine) as one:
        yield one


@pytest.fixture(scope="session")
def client(server: Running) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="session")
def tools_server(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """The default model with a chat template that shows tools."""
    path = tmp_path_factory.mktemp("models") / "tools.gguf"
    reader = GGUFReader(default_model)
    writer = GGUFWriter(path, "llama")
    template = MetadataDetails(GGUFValueType.STRING, TOOLS_TEMPLATE)
    copy_with_new_metadata(reader, writer, {"tokenizer.chat_template": template}, [])
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(path, replace(OPTIONS, draft="none", k=0)))
        yield stack.enter_context(running(engine))


@pytest.fixture
def endless(engine: Engine) -> dict[str, float]:
    """A logit bias that forbids the end of an answer."""
    return {str(token): -100.0 for token in engine.vocabulary.end_tokens}
