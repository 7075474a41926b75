"""Running a generation beside the main thread, so that Ctrl-C is heard while llama.cpp works."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from edgespec.runtime.piece import Piece

if TYPE_CHECKING:
    from edgespec.runtime.stream import Result

__all__ = ["Cancellable", "consume", "run_beside"]


class Cancellable(Protocol):
    """A stream, or the turn of a session."""

    def __iter__(self) -> Iterator[Piece]:
        """Pieces of text."""

    def cancel(self) -> None:
        """End it."""

    @property
    def result(self) -> Result:
        """How it went."""


def consume(stream: Cancellable, show: Callable[[Piece], None]) -> Result:
    """Hand every piece to `show` in the calling thread; Ctrl-C cancels the stream.

    A second Ctrl-C, while the first is still being carried out, raises KeyboardInterrupt.

    Raises: what the stream raises, and what `show` raises, after the stream was stopped.
    """
    pieces: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()

    worker = run_beside(stream, pieces.put)
    try:
        _drain(pieces, show)
    except KeyboardInterrupt:
        stream.cancel()
        _drain(pieces, show)
    except BaseException:
        stream.cancel()
        raise
    finally:
        worker.join()
    return stream.result


def run_beside(
    stream: Cancellable, put: Callable[[Piece | BaseException | None], object]
) -> threading.Thread:
    """Run a stream in a thread of its own: `put` gets its pieces, its error if any, then None."""

    def work() -> None:
        try:
            for piece in stream:
                put(piece)
        except BaseException as error:
            put(error)
        put(None)

    # Not waited for at exit: an engine is closed there, which ends what still runs.
    worker = threading.Thread(target=work, name="edgespec-generation", daemon=True)
    worker.start()
    return worker


def _drain(
    pieces: queue.SimpleQueue[Piece | BaseException | None], show: Callable[[Piece], None]
) -> None:
    while (piece := pieces.get()) is not None:
        if isinstance(piece, BaseException):
            raise piece
        show(piece)
