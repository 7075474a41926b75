"""Which requests may generate: a few at once; a bounded number wait; the rest must retry.

What they do is counted for Prometheus; the counters reveal nothing of what was asked or answered.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.runtime.stream import Stream
from edgespec.server.errors import ApiError

__all__ = ["Admission", "Counting", "Metrics"]

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
