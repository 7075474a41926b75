"""Ctrl-C: held back where it would leave something half done, heard while llama.cpp works."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

__all__ = ["Generation", "chunks_of", "consume", "held_interrupts", "run_beside"]


@contextmanager
def held_interrupts(heard: Callable[[], object] | None = None) -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back until the block ends; yield a function that tells whether it came.

    A KeyboardInterrupt at the entry of a callback cannot cross the native frames below it:
    ctypes prints it and drops it. Between an evaluation and its accounting, it would leave a cache
    with unknown contents. Inside an import or Numba's compiler, it would leave halves in this
    process that no later import or call completes.

    Args:
        heard: called as soon as Ctrl-C comes, to make the block end soon. With it, a signal handler
            of the program's own stays in place, because it may do something else.
    """
    previous = signal.getsignal(signal.SIGINT)
    held = callable(previous) if heard is None else previous is signal.default_int_handler
    if not held or threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals are handled elsewhere
        return
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        if heard is not None:
            heard()

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, previous)
        if came:
            signal.raise_signal(signal.SIGINT)


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
