"""Guards before every route: who may ask, from where, and how many at once.

Every web page that a user opens can reach a server on the user's own machine. So the Host header is
checked, because a page can give its own name this address (DNS rebinding), and so is the origin of
a request.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.errors import UsageError
from edgespec.runtime.stream import Stream
from edgespec.server.errors import ApiError, error_response

__all__ = ["Access", "Admission", "Counting", "KeyGuard", "Metrics", "OriginGuard", "is_loopback"]

_OPEN = frozenset(("/", "/health", "/openapi.json")) | {
    f"/{file.name}" for file in Path(__file__).with_name("page").iterdir()
}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MOST_TOLD = 16
_NAME = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_log = logging.getLogger("edgespec.server")
_SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        host: the address it listens on.
        api_key: the key that clients have to send; None if they need none.
        origins: of other web pages that may use it, as ``https://name:port``.
        more_keys: of other users, if there is an `api_key`.

    Raises:
        UsageError: anybody could use it, a key cannot be sent in a header, or an origin is
            malformed.
    """

    host: str = "127.0.0.1"
    api_key: str | None = None
    origins: Collection[str] = ()
    more_keys: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.api_key is None and not is_loopback(self.host):
            raise UsageError(
                f"{self.host} can be reached from other machines: set EDGESPEC_API_KEY, so that "
                "not everybody there can use this server"
            )
        for key in self._keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError("the API key has to be printable ASCII without spaces, not empty")
        for origin in self.origins:
            sent = _as_sent(origin)
            if sent is None:
                raise UsageError(f"{origin!r} is no origin: give one like https://example.org:8443")
            if sent != origin:
                raise UsageError(f"{origin!r} is never what a browser sends: give {sent}")

    def knows_host(self, host: str | None) -> bool:
        """Return whether a Host header names this server."""
        parts = _split(f"//{host}")
        name = parts.hostname if parts else None
        if name is None:
            return False
        if not is_loopback(self.host):  # its names are not known here; the key protects it
            return True
        return is_loopback(name) or any(name == urlsplit(one).hostname for one in self.origins)

    def knows_origin(self, origin: str, host: str | None) -> bool:
        """Return whether pages of this origin may use the server: its own and allowed ones."""
        parts = _split(origin)
        own = parts is not None and host is not None and parts.netloc.lower() == host.lower()
        return own or origin in self.origins

    def knows_key(self, authorization: str | None, x_api_key: str | None = None) -> bool:
        """Return whether one of these headers has a key; wrong keys take equal time."""
        return self.key_of(authorization, x_api_key) is not None

    def key_of(self, authorization: str | None, x_api_key: str | None = None) -> str | None:
        """Return the key that one of these headers has; empty if none is needed."""
        if self.api_key is None:
            return ""
        scheme, _, given = (authorization or "").partition(" ")
        bearer = given if scheme.lower() == "bearer" else ""
        found = None
        for key in self._keys:
            named = _is_key(bearer, key), _is_key(x_api_key or "", key)
            found = key if any(named) else found
        return found

    @property
    def _keys(self) -> tuple[str, ...]:
        return () if self.api_key is None else (self.api_key, *self.more_keys)


class OriginGuard:
    """Refuses requests under a foreign name or from a foreign page; adds security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._told: set[str] = set()

    def _log(self, text: str, name: str) -> None:
        """Say it once of each name, and of a few names: anybody can invent more."""
        if name not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(name)
            _log.warning(text, name[:200])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host"), headers.get("origin")
        send = _with_security_headers(send)
        if not self._access.knows_host(host):
            message = "this server does not answer to that Host: use localhost or 127.0.0.1"
            self._log("refused a request for the Host %r", host or "")
            await error_response(ApiError(403, message, code="host"))(scope, receive, send)
        elif origin is not None and not self._access.knows_origin(origin, host):
            message = "pages of this origin may not use the server: --allow-origin lets them"
            self._log("refused a page of %r: --allow-origin lets an origin use the server", origin)
            await error_response(ApiError(403, message, code="origin"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class KeyGuard:
    """Refuses requests without the key, except for the page, /health and /openapi.json."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        headers = Headers(scope=scope)
        known = self._access.knows_key(headers.get("authorization"), headers.get("x-api-key"))
        if scope["path"] not in _OPEN and not known:
            error = ApiError(
                401,
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY', or as "
                "'X-Api-Key: KEY'",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address or name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_key(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), wanted.encode("ascii"))


def _as_sent(origin: str) -> str | None:
    """Return an origin as browsers write it: lower case, no usual port; None if it is none."""
    parts = _split(origin)
    if parts is None or parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc or origin[-1] in "?#":
        return None
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    try:
        port = parts.port
        name = name if name.isascii() else name.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        return None
    if not _NAME.fullmatch(name):
        return None
    usual = port is None or port == _DEFAULT_PORTS[parts.scheme]
    return f"{parts.scheme}://{name}" + ("" if usual else f":{port}")


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _with_security_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_SECURITY_HEADERS)
        await send(message)

    return sending


_WEIGHT = 0.2  # of the latest generation in the mean
_LONGEST_RETRY_S = 120


class Cancellable(Protocol):
    """What has a turn: a stream."""

    def cancel(self) -> None:
        """End the generation."""


class Admission:
    """Turns at the engine, first come first served. It belongs to one event loop.

    Args:
        parallel: generations that run at once; they take turns at the engine.
        queue: how many more may wait.
    """

    def __init__(self, parallel: int, queue: int) -> None:
        self._free = self._parallel = parallel
        self._queue = queue
        self._places = 0
        self._tickets: deque[asyncio.Future[None]] = deque()
        self._running: set[Cancellable] = set()
        self._mean_s = 1.0
        self._closed = False

    @property
    def running(self) -> int:
        """Number of generations that are running."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of requests whose generation has not begun: in preparation or in the queue."""
        return self._places - len(self._running)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Reserve a place for a request from its arrival to the end of its generation.

        Raises:
            ApiError: there is no place (429, with Retry-After), or the server is stopping (503).
        """
        if self._closed:
            raise _stopping()
        if self._places >= self._parallel + self._queue:
            wait = self._mean_s * self._places / self._parallel
            raise ApiError(
                429,
                f"{self._places} requests are under way or waiting: try again later",
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(min(_LONGEST_RETRY_S, math.ceil(wait)))},
            )
        self._places += 1
        try:
            yield
        finally:
            self._places -= 1

    @asynccontextmanager
    async def turn(self, stream: Cancellable, seconds: float) -> AsyncIterator[None]:
        """Wait for this stream's turn, and hold it until the block ends.

        Args:
            stream: cancelled when the time is over, and by `close`.
            seconds: for the wait and the turn together.

        Raises:
            ApiError: the time was over before its turn came (504), or `close` was called (503).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        await self._take(seconds)
        self._running.add(stream)
        began = loop.time()
        timer = loop.call_at(deadline, stream.cancel)
        try:
            yield
        finally:
            timer.cancel()
            self._running.discard(stream)
            self._mean_s += _WEIGHT * (loop.time() - began - self._mean_s)
            self._give_back()

    def close(self) -> None:
        """End running generations with what they have written, and refuse waiting ones."""
        self._closed = True
        for ticket in self._tickets:
            if not ticket.done():
                ticket.set_exception(_stopping())
        for stream in tuple(self._running):
            stream.cancel()

    async def _take(self, seconds: float) -> None:
        if self._closed:
            raise _stopping()
        if self._free:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        ticket: asyncio.Future[None] = loop.create_future()
        self._tickets.append(ticket)
        timer = loop.call_later(seconds, _expire, ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled() and ticket.exception() is None:
                self._give_back()  # its turn came just when its client went away
            raise
        finally:
            timer.cancel()
            with suppress(ValueError):
                self._tickets.remove(ticket)

    def _give_back(self) -> None:
        while self._tickets:
            ticket = self._tickets.popleft()
            if not ticket.done():
                ticket.set_result(None)
                return
        self._free += 1


def _expire(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        message = "the time limit of a request was over before its turn came: try again later"
        ticket.set_exception(ApiError(504, message, kind="timeout_error", code="timeout"))


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping", kind="server_error", code="stopping")


_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
_SPEEDS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Metrics:
    """The metrics of one server, in a registry of its own.

    Args:
        admission: its queue is shown.
        engine_waiting: returns how many generations wait for their turn at the engine.
        recent_bytes: returns the memory that answers take which prompt lookup may copy from.
    """

    def __init__(
        self,
        admission: Admission,
        engine_waiting: Callable[[], int],
        recent_bytes: Callable[[], int],
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "edgespec_requests", "Requests, by path and status.", ["path", "status"],
            registry=registry,
        )  # fmt: skip
        self._tokens = {
            kind: Counter(f"edgespec_{kind}_tokens", text, registry=registry)
            for kind, text in (
                ("prompt", "Tokens of prompts."),
                ("cached", "Tokens of prompts that a cache held already."),
                ("generated", "Tokens of answers."),
                ("proposed", "Tokens that were proposed."),
                ("accepted", "Proposed tokens that were accepted."),
            )
        }
        self._prefill = Histogram(
            "edgespec_prefill_seconds", "Reading a prompt.", buckets=_SECONDS, registry=registry
        )
        self._decode = Histogram(
            "edgespec_decode_seconds", "Writing an answer.", buckets=_SECONDS, registry=registry
        )
        self._speed = Histogram(
            "edgespec_tokens_per_second", "Of an answer.", buckets=_SPEEDS, registry=registry
        )
        for name, text, read in (
            ("running", "Generations under way.", lambda: admission.running),
            ("waiting", "Requests before their generation.", lambda: admission.waiting),
            ("engine_waiting", "Generations that wait for their turn.", engine_waiting),
            ("recent_answers_bytes", "Memory for answers that are looked up.", recent_bytes),
        ):
            Gauge(f"edgespec_{name}", text, registry=registry).set_function(read)

    def responded(self, path: str, status: int) -> None:
        """Count a response."""
        self._requests.labels(path, str(status)).inc()

    def generated(self, stream: Stream) -> None:
        """Add the figures of a generation, however it ended."""
        figures = stream.statistics
        counts = {
            "prompt": stream.prompt_tokens,
            "cached": figures.reused_tokens,
            "generated": len(stream.emitted),
            "proposed": figures.proposed,
            "accepted": figures.accepted,
        }
        for kind, count in counts.items():
            self._tokens[kind].inc(count)
        self._prefill.observe(figures.prefill_s)
        if stream.emitted:
            self._decode.observe(figures.decode_s)
            self._speed.observe(figures.tokens_per_second)

    def embedded(self, tokens: int) -> None:
        """Add a text that was embedded."""
        self._tokens["prompt"].inc(tokens)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Counting:
    """Counts responses; the status is 499 if the client left before the response began.

    Args:
        app: responds.
        metrics: counts.
        paths: those counted separately; all others, which clients can invent, are one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        status = 499

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.responded(path, status)
