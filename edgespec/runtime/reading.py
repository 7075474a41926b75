"""Reading a generation that runs in a thread of its own.

So Ctrl-C is heard while llama.cpp works, and an event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol, TypeVar

__all__ = ["Generation", "chunks_of", "consume", "run_beside"]

Chunk = TypeVar("Chunk")
Outcome = TypeVar("Outcome")
ChunkOut = TypeVar("ChunkOut", covariant=True)
OutcomeOut = TypeVar("OutcomeOut", covariant=True)


class Generation(Protocol[ChunkOut, OutcomeOut]):
    """A stream, or the turn of a session."""

    def __iter__(self) -> Iterator[ChunkOut]:
        """Return the iterator over its chunks."""

    def cancel(self) -> None:
        """End it."""

    @property
    def result(self) -> OutcomeOut:
        """How it went."""


def consume(generation: Generation[Chunk, Outcome], show: Callable[[Chunk], object]) -> Outcome:
    """Hand every chunk to `show` in the calling thread; Ctrl-C cancels the generation.

    A second Ctrl-C, while the first is still being carried out, raises KeyboardInterrupt.

    Raises: what the generation raises, and what `show` raises, after the generation was stopped.
    """
    chunks: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()

    worker = run_beside(generation, chunks.put)
    try:
        _drain(chunks, show)
    except KeyboardInterrupt:
        generation.cancel()
        _drain(chunks, show)
    except BaseException:
        generation.cancel()
        raise
    finally:
        worker.join()
    return generation.result


async def chunks_of(generation: Generation[Chunk, object]) -> AsyncIterator[Chunk]:
    """Yield the chunks as they come.

    A slow reader holds up nobody: what it has not taken yet waits for it. When the task is
    cancelled, or the iterator closed, the generation is cancelled.

    Raises: what the generation raises.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()

    def put(item: Chunk | BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(chunks.put_nowait, item)
        except RuntimeError:  # the loop was closed meanwhile: nobody reads any more
            generation.cancel()

    run_beside(generation, put)
    ended = False
    try:
        while (item := await chunks.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
        ended = True
    finally:
        if not ended:
            generation.cancel()


def run_beside(
    generation: Generation[Chunk, object],
    put: Callable[[Chunk | BaseException | None], object],
) -> threading.Thread:
    """Run it in a thread: `put` gets its chunks, its error if there is one, then None."""

    def work() -> None:
        try:
            for chunk in generation:
                put(chunk)
        except BaseException as error:
            put(error)
        put(None)

    # Not waited for at exit: an engine is closed there, which ends what still runs.
    worker = threading.Thread(target=work, name="edgespec-generation", daemon=True)
    worker.start()
    return worker


def _drain(
    chunks: queue.SimpleQueue[Chunk | BaseException | None], show: Callable[[Chunk], object]
) -> None:
    while (chunk := chunks.get()) is not None:
        if isinstance(chunk, BaseException):
            raise chunk
        show(chunk)
