"""Send an answer to a client: one task writes it, another sends it; it ends if the client leaves.

The writing task holds a place at the engine and never waits for the client; what the client has
not received yet is kept, at most one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from edgespec.compat.openai.responses import figures
from edgespec.runtime.stream import Result, TokenChunk
from edgespec.server.admission import Admission
from edgespec.server.errors import ApiError, as_api_error, error_response
from edgespec.server.generating import Job
from edgespec.server.metrics import Metrics
from edgespec.server.requests import GenerationRequest

__all__ = ["Answer"]

_DELIVERY_S = 60.0
"""How long a client may take to receive the rest when the generation is over."""

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


class Answer:
    """The response to a request for a generation: an ASGI application, as Starlette's are.

    It is one object, or server-sent events.

    Args:
        request: says which of them is wanted.
        prepare: makes the generation; runs in a thread.
        admission: gives it a place, or refuses it.
        metrics: count it.
        seconds: for waiting and generating; after that, the answer is what was written so far.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prepare: Callable[[], Job],
        admission: Admission,
        metrics: Metrics,
        seconds: float,
    ) -> None:
        self._request, self._prepare = request, prepare
        self._admission, self._metrics, self._seconds = admission, metrics, seconds
        self._job: Job | None = None
        self._written: asyncio.Queue[TokenChunk | Result | Exception] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send until that is done or the client has left."""
        await _while_connected(
            receive, self._respond(scope, receive, send), self._seconds + _DELIVERY_S
        )

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write())
        try:
            first = await self._written.get()
            if isinstance(first, Exception):
                response: Response = error_response(first)
            elif self._request.stream:
                await self._send_events(first, send)
                return
            else:
                response = await self._whole(first)
            await response(scope, receive, send)
        finally:
            writing.cancel()

    # -- writing ----------------------------------------------------------------------------

    async def _write(self) -> None:
        """Generate into `_written`, which ends with a result or an error."""
        try:
            with self._admission.place():
                self._job = await asyncio.to_thread(self._prepare)
                result = await self._generate(self._job)
            if result.finish_reason == "cancelled" and not result.tokens:
                raise ApiError(
                    504,
                    "the answer was ended before it began: the time limit was over, or the server "
                    "is stopping",
                    kind="timeout_error",
                    code="timeout",
                )
            self._written.put_nowait(result)
        except Exception as error:
            self._written.put_nowait(error)

    async def _generate(self, job: Job) -> Result:
        async with self._admission.turn(job.stream, self._seconds):
            try:
                async for piece in job.stream:
                    self._written.put_nowait(piece)
            finally:
                self._metrics.generated(job.stream)
        return job.stream.result

    async def _rest(self) -> AsyncIterator[list[TokenChunk | Result | Exception]]:
        """Yield what was written since the last time, until the end."""
        while True:
            items = [await self._written.get()]
            while not self._written.empty():
                items.append(self._written.get_nowait())
            yield items
            if not isinstance(items[-1], TokenChunk):
                return

    # -- as one object ----------------------------------------------------------------------

    async def _whole(self, last: TokenChunk | Result | Exception) -> Response:
        if isinstance(last, TokenChunk):
            async for items in self._rest():
                last = items[-1]
        if isinstance(last, Exception):
            return error_response(last)
        assert isinstance(last, Result) and self._job is not None
        body = self._job.whole(last)
        return JSONResponse({**body, "edgespec": self._figures(last)})

    def _figures(self, result: Result) -> Json:
        assert self._job is not None
        plain = result.statistics.plain_tokens_per_second
        return {**figures(result), "plain_tokens_per_second": plain, "seed": self._job.seed}

    # -- as events --------------------------------------------------------------------------

    async def _send_events(self, first: TokenChunk | Result, send: Send) -> None:
        assert self._job is not None
        response = Response(media_type="text/event-stream", headers=_HEADERS)
        headers = [(k, v) for k, v in response.raw_headers if k != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opening = [self._event(chunk) for chunk in self._job.chunks.opening()]
        await self._send(send, [*opening, *self._events(first)])
        if isinstance(first, TokenChunk):
            async for items in self._rest():
                await self._send(send, [data for item in items for data in self._events(item)])
        await send({"type": "http.response.body", "body": _DONE, "more_body": False})

    async def _send(self, send: Send, events: list[bytes]) -> None:
        if events:
            body = b"".join(events)
            await send({"type": "http.response.body", "body": body, "more_body": True})

    def _events(self, item: TokenChunk | Result | Exception) -> list[bytes]:
        if isinstance(item, TokenChunk):
            return self._piece_event(item)
        if isinstance(item, Exception):
            return [_as_event(as_api_error(item).body)]
        assert self._job is not None
        *held, last = self._job.chunks.closing(item)
        events = [self._event(chunk) for chunk in held]
        events.append(self._event({**last, "edgespec": self._figures(item)}))
        if self._include_usage:
            events.append(_as_event(self._job.chunks.usage(item)))
        return events

    def _piece_event(self, piece: TokenChunk) -> list[bytes]:
        assert self._job is not None
        chunk = self._job.chunks.piece(piece)
        if chunk is None:
            return []
        if self._request.edgespec and self._request.edgespec.origins:
            chunk["edgespec"] = {
                "origin": piece.origin.value,
                "token": piece.token,
                "acceptance_rate": self._job.stream.statistics.acceptance_rate,
            }
        return [self._event(chunk)]

    def _event(self, chunk: Json) -> bytes:
        return _as_event({**chunk, "usage": None} if self._include_usage else chunk)

    @property
    def _include_usage(self) -> bool:
        options = self._request.stream_options
        return options is not None and options.include_usage


def _as_event(value: Json) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8") + b"\n\n"


async def _while_connected(receive: Receive, work: Awaitable[None], seconds: float) -> None:
    """Do the work; cancel it when the client has left or the time is over."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, gone}, timeout=seconds, return_when="FIRST_COMPLETED")
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
