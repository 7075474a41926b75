"""Generations for an event loop: each runs in a thread, the loop only ever gets its pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from edgespec.runtime.consume import Cancellable, run_beside
from edgespec.runtime.piece import Piece

__all__ = ["pieces_of"]


async def pieces_of(stream: Cancellable) -> AsyncIterator[Piece]:
    """The stream's pieces as they come.

    A slow reader holds up nobody: what it has not taken yet waits for it. When the task is
    cancelled, or the iterator closed, the stream is cancelled.

    Raises: what the stream raises.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()

    def put(item: Piece | BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(pieces.put_nowait, item)
        except RuntimeError:  # the loop was closed meanwhile: nobody reads any more
            stream.cancel()

    run_beside(stream, put)
    ended = False
    try:
        while (item := await pieces.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
        ended = True
    finally:
        if not ended:
            stream.cancel()
