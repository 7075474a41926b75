"""Send an answer, or vectors: one task works, another sends; it ends if the client leaves.

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

from edgespec.compat.openai.responses import embedding_list, figures, shortened, total_usage
from edgespec.compat.openai.responses_api import ResponseEvents
from edgespec.errors import CancelledError, UsageError
from edgespec.runtime.embedding import Embedder, EmbeddingRun
from edgespec.runtime.stream import Result, TokenChunk
from edgespec.server.errors import ApiError, as_api_error, error_response
from edgespec.server.generating import Job
from edgespec.server.guard import Admission, Metrics
from edgespec.server.requests import EmbeddingRequest, GenerationRequest

__all__ = ["DELIVERY_S", "Answer", "EmbeddingAnswer", "while_connected"]

DELIVERY_S = 60.0
"""How long a client may take to receive the rest when the generation is over."""

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]

Written = tuple[int, TokenChunk | Result] | Exception | None
"""A piece or the end of a choice, by its number; an error; or None behind the last choice."""


class Answer:
    """The response to a request for a generation: an ASGI application, as Starlette's are.

    It is one object, or server-sent events; a request may have several answers, its choices.

    Args:
        request: says which of them is wanted.
        prepare: makes the generation; runs in a thread.
        admission: gives it a place, or refuses it.
        metrics: count it.
        seconds: for waiting and generating; after that, the answer is what was written so far.
        facts: put into every object and chunk.
        events: makes what is sent of the only choice, as the Responses interface has it.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prepare: Callable[[], Job],
        admission: Admission,
        metrics: Metrics,
        seconds: float,
        facts: Json | None = None,
        events: ResponseEvents | None = None,
    ) -> None:
        self._request, self._prepare = request, prepare
        self._facts, self._translator = facts or {}, events
        self._admission, self._metrics, self._seconds = admission, metrics, seconds
        self._job: Job | None = None
        self._written: asyncio.Queue[Written] = asyncio.Queue()
        self._ended: list[Result] = []
        self._opened = 0
        self._id = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send until that is done or the client has left."""
        await while_connected(
            receive, self._respond(scope, receive, send), self._seconds + DELIVERY_S
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
        """Generate into `_written`, which ends with None or an error."""
        try:
            with self._admission.place():
                self._job = await self._prepared()
                async with self._admission.turn(self._job, self._seconds):
                    for index in range(len(self._job.choices)):
                        await self._generate(index)
            self._written.put_nowait(None)
        except Exception as error:
            self._written.put_nowait(error)

    async def _prepared(self) -> Job:
        """Prepare in a thread; who has left, or waited too long, does not wait for its end."""
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._prepare), self._seconds)
        except asyncio.TimeoutError:
            message = "the time limit was over before the request was prepared: send a simpler one"
            raise ApiError(504, message, kind="timeout_error", code="timeout") from None

    async def _generate(self, index: int) -> None:
        assert self._job is not None
        stream = self._job.choices[index].stream
        try:
            async for piece in stream:
                self._written.put_nowait((index, piece))
        finally:
            self._metrics.generated(stream)
        result = stream.result
        if result.finish_reason == "cancelled" and not result.tokens and index == 0:
            raise ApiError(
                504,
                "the answer was ended before it began: the time limit was over, or the server "
                "is stopping",
                kind="timeout_error",
                code="timeout",
            )
        self._written.put_nowait((index, result))

    async def _rest(self) -> AsyncIterator[list[Written]]:
        """Yield what was written since the last time, until the end."""
        while True:
            items = [await self._written.get()]
            while not self._written.empty():
                items.append(self._written.get_nowait())
            yield items
            if not isinstance(items[-1], tuple):
                return

    # -- as one object ----------------------------------------------------------------------

    async def _whole(self, first: Written) -> Response:
        results: list[Result] = []
        written = [first]
        async for items in self._rest():
            written += items
            if isinstance(items[-1], Exception):
                return error_response(items[-1])
        for item in written:
            if isinstance(item, tuple) and isinstance(item[1], Result):
                results.append(item[1])
        assert self._job is not None
        bodies = [
            choice.whole(result) for choice, result in zip(self._job.choices, results, strict=True)
        ]
        return JSONResponse(self._joined(bodies, results))

    def _joined(self, bodies: list[Json], results: list[Result]) -> Json:
        """Make one object of those of all choices."""
        if self._translator is not None:
            self._translator.delta(bodies[0]["choices"][0]["message"])
            self._translate_end(bodies[0]["choices"][0]["finish_reason"], results[0])
            return {**self._translator.response, "edgespec": self._figures(0, results[0])}
        if len(bodies) == 1:
            return {**self._facts, **bodies[0], "edgespec": self._figures(0, results[0])}
        choices = [
            {**body["choices"][0], "index": index, "edgespec": self._figures(index, result)}
            for index, (body, result) in enumerate(zip(bodies, results, strict=True))
        ]
        return {**self._facts, **bodies[0], "choices": choices, "usage": self._usage(results)}

    def _usage(self, results: list[Result]) -> Json:
        """Add up what all choices took; a prompt counts once, however many answers it has."""
        assert self._job is not None
        return total_usage(results, self._job.n)

    def _figures(self, index: int, result: Result) -> Json:
        assert self._job is not None
        return {**figures(result), **self._job.facts, "seed": self._job.choices[index].seed}

    # -- as events --------------------------------------------------------------------------

    async def _send_events(self, first: Written, send: Send) -> None:
        response = Response(media_type="text/event-stream", headers=_HEADERS)
        headers = [(k, v) for k, v in response.raw_headers if k != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(send, self._events(first))
        if first is not None:
            async for items in self._rest():
                await self._send(send, [data for item in items for data in self._events(item)])
        done = b"" if self._translator else _DONE
        await send({"type": "http.response.body", "body": done, "more_body": False})

    async def _send(self, send: Send, events: list[bytes]) -> None:
        if events:
            body = b"".join(events)
            await send({"type": "http.response.body", "body": body, "more_body": True})

    def _events(self, item: Written) -> list[bytes]:
        assert self._job is not None
        if isinstance(item, Exception):
            body = as_api_error(item).body
            if self._translator is not None:
                return _named_events(self._translator.fail(body["error"]))
            return [_as_event(body)]
        if self._translator is not None:
            return _named_events(self._translated(item, self._translator))
        if item is None:
            if not self._include_usage:
                return []
            chunk = self._job.choices[0].chunks.usage(self._ended[0])
            return [self._as_event({**chunk, "usage": self._usage(self._ended)})]
        index, told = item
        chunks, events = self._job.choices[index].chunks, []
        if index == self._opened:
            self._opened += 1
            events = [self._event(index, chunk) for chunk in chunks.opening()]
        if isinstance(told, TokenChunk):
            return events + self._piece_event(index, told)
        self._ended.append(told)
        *held, last = chunks.closing(told)
        events += [self._event(index, chunk) for chunk in held]
        return [*events, self._event(index, {**last, "edgespec": self._figures(index, told)})]

    def _piece_event(self, index: int, piece: TokenChunk) -> list[bytes]:
        assert self._job is not None
        chunk = self._job.choices[index].chunks.piece(piece)
        if chunk is None:
            return []
        if self._request.edgespec and self._request.edgespec.origins:
            chunk["edgespec"] = {
                "origin": piece.origin.value,
                "token": piece.token,
                "acceptance_rate": self._job.choices[index].stream.statistics.acceptance_rate,
            }
        return [self._event(index, chunk)]

    def _event(self, index: int, chunk: Json) -> bytes:
        choices = [{**choice, "index": index} for choice in chunk["choices"]]
        chunk = {**chunk, "choices": choices}
        return self._as_event({**chunk, "usage": None} if self._include_usage else chunk)

    def _as_event(self, chunk: Json) -> bytes:
        """Return an event; chunks of all choices have one id."""
        self._id = self._id or chunk["id"]
        return _as_event({**chunk, **self._facts, "id": self._id})

    @property
    def _include_usage(self) -> bool:
        options = self._request.stream_options
        return options is not None and options.include_usage

    # -- as events of the Responses interface -------------------------------------------------

    def _translated(self, item: Written, events: ResponseEvents) -> list[Json]:
        if not isinstance(item, tuple):
            return []
        assert self._job is not None
        chunks, (_, told) = self._job.choices[0].chunks, item
        begun = [] if self._opened else events.begin()
        self._opened = 1
        if isinstance(told, TokenChunk):
            chunk = chunks.piece(told)
            return begun if chunk is None else begun + events.delta(chunk["choices"][0]["delta"])
        *held, last = [chunk["choices"][0] for chunk in chunks.closing(told)]
        for choice in held:
            begun += events.delta(choice["delta"])
        *ended, end = self._translate_end(last["finish_reason"], told)
        return [*begun, *ended, {**end, "edgespec": self._figures(0, told)}]

    def _translate_end(self, reason: str, result: Result) -> list[Json]:
        assert self._translator is not None
        return self._translator.finish(self._usage([result]), complete=reason != "length")


def _named_events(events: list[Json]) -> list[bytes]:
    return [f"event: {event['type']}\n".encode() + _as_event(event) for event in events]


def _as_event(value: Json) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8") + b"\n\n"


async def while_connected(receive: Receive, work: Awaitable[None], seconds: float) -> None:
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


class EmbeddingAnswer:
    """The response to a request for embeddings: an ASGI application, as Starlette's are.

    Args:
        request: what is wanted.
        open_embedder: returns what makes vectors; runs in a thread.
        admission: gives the request a place, or refuses it.
        metrics: count its tokens.
        seconds: for waiting and evaluating.
        name: of the model, to tell.
    """

    def __init__(
        self,
        request: EmbeddingRequest,
        open_embedder: Callable[[], Embedder],
        admission: Admission,
        metrics: Metrics,
        seconds: float,
        name: str,
    ) -> None:
        self._request, self._open = request, open_embedder
        self._admission, self._metrics, self._seconds = admission, metrics, seconds
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Evaluate and send until that is done or the client has left."""
        work = self._respond(scope, receive, send)
        await while_connected(receive, work, self._seconds + DELIVERY_S)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._admission.place():
                run = await asyncio.to_thread(self._start)
                async with self._admission.turn(run, self._seconds):
                    response: Response = await self._finished(run)
        except CancelledError:
            message = "the time limit of a request was over, or the server is stopping"
            response = error_response(ApiError(504, message, kind="timeout_error", code="timeout"))
        except Exception as error:
            response = error_response(error)
        await response(scope, receive, send)

    def _start(self) -> EmbeddingRun:
        embedder, wanted = self._open(), self._request.dimensions
        if wanted is not None and wanted > embedder.dimensions:
            message = f"dimensions has to be at most {embedder.dimensions} for this model"
            raise ApiError(400, message, param="dimensions")
        try:
            return embedder.start(self._request.texts())
        except UsageError as error:
            raise ApiError(400, f"input: {error}", param="input") from None

    async def _finished(self, run: EmbeddingRun) -> Response:
        """Evaluate in a thread, and hold the turn until that has ended, however it ends."""
        working = asyncio.create_task(asyncio.to_thread(self._evaluate, run))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            run.cancel()
            await asyncio.wait({working})
            raise

    def _evaluate(self, run: EmbeddingRun) -> Response:
        wanted, found = self._request.dimensions, []
        for one in run:
            self._metrics.embedded(one.tokens)
            found.append(one if wanted is None else shortened(one, wanted))
        return JSONResponse(embedding_list(found, self._name, self._request.encoding_format))
