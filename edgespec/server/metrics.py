"""Counters for Prometheus. They reveal nothing of what was asked or answered."""

from __future__ import annotations

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.runtime.stream import Stream
from edgespec.server.admission import Admission

__all__ = ["Counting", "Metrics"]

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
