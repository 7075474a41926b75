"""Answer a request for embeddings: texts one by one; it ends if the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from edgespec.compat.openai.responses import embedding_list, shortened
from edgespec.errors import CancelledError, UsageError
from edgespec.runtime.embedding import Embedder, EmbeddingRun
from edgespec.server.errors import ApiError, error_response
from edgespec.server.guard import Admission, Metrics
from edgespec.server.requests import EmbeddingRequest
from edgespec.server.streaming import DELIVERY_S, while_connected

__all__ = ["EmbeddingAnswer"]


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
