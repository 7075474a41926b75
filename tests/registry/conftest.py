"""A local file server, and a cache folder of the test's own."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgespec.registry.cache import ModelCache, default_cache
from tests.gguf.conftest import make_gguf

__all__ = ["FileServer", "cache", "make_gguf", "nobody", "server"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    return default_cache()


@dataclass
class FileServer:
    """What is served, how badly, and what was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    cut_after: int | None = None
    """Bytes of a body after which the connection is closed."""
    cuts: int = 1 << 30
    """How many times that happens."""
    pause: float = 0.0
    """Seconds before a body."""
    etags: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and Range header of each request."""
    tokens: set[str | None] = field(default_factory=set)
    """Authorization headers of all requests."""

    def etag(self, path: str) -> str:
        return '"' + hashlib.sha256(self.files[path]).hexdigest() + '"'

    @property
    def downloads(self) -> int:
        return sum(method == "GET" for method, _, _ in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shared: FileServer

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, body: bool) -> None:
        shared, asked = self.shared, self.headers.get("Range")
        shared.requests.append((self.command, self.path, asked))
        shared.tokens.add(self.headers.get("Authorization"))
        data = shared.files.get(self.path)
        if data is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, status = 0, 200
        if asked and self.headers.get("If-Range") == shared.etag(self.path):
            start, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
            if start >= len(data):
                status = 416
        rest = data[start:] if status != 416 else b""
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if shared.etags:
            self.send_header("ETag", shared.etag(self.path))
        for name, value in shared.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if body:
            self._send(rest)

    def _send(self, rest: bytes) -> None:
        time.sleep(self.shared.pause)
        cut = self.shared.cut_after
        if cut is not None and self.shared.cuts > 0 and cut < len(rest):
            self.shared.cuts -= 1
            self.wfile.write(rest[:cut])
            self.close_connection = True
        else:
            self.wfile.write(rest)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of some tests."""


@pytest.fixture
def server() -> Iterator[FileServer]:
    shared = FileServer()
    handler = type("Handler", (_Handler,), {"shared": shared})
    with _Server(("127.0.0.1", 0), handler) as httpd:
        shared.url = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield shared
        httpd.shutdown()
        thread.join()


@pytest.fixture
def nobody() -> str:
    """An address at which nothing answers."""
    return "http://127.0.0.1:9"
