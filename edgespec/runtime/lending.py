"""One decoder, lent to one stream at a time: turns, interrupts, and how it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from edgespec.backend.interrupts import held_interrupts
from edgespec.errors import CancelledError, EdgespecError
from edgespec.runtime.decoder import Cycle, Decoder
from edgespec.runtime.stream import Stream
from edgespec.runtime.turns import Turns

__all__ = ["Lending"]

_log = logging.getLogger("edgespec.engine")


class Lending:
    """Lets streams use a decoder, from any thread, until it is closed.

    Args:
        decoder: nobody else uses it.

    Attributes:
        closed: whether it was closed; what it is made of may be in use for a moment longer.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.closed = False
        self._decoder = decoder
        self._free: Callable[[], None] = _nothing
        self._turns = Turns()
        # Reentrant, as a handler of a signal may cancel in the middle of it.
        self._switch = threading.RLock()  # guards which stream a cancellation would hit
        self._current: Stream | None = None

    @property
    def waiting(self) -> int:
        """How many generations wait for their turn."""
        return self._turns.waiting

    def advance(self, stream: Stream, limit: int, begins: Callable[[Stream], None]) -> Cycle | None:
        """One cycle for this stream; None when its context is full and may not be shifted.

        Args:
            stream: whose turn it is to be.
            limit: the most tokens to emit.
            begins: called in its turn where it follows another stream, or is the first.

        Raises:
            CancelledError: the stream was cancelled, or this was closed.
            Errors of `Decoder.begin` and `Decoder.cycle`.
        """
        with self._turn(stream, lambda: stream.cancelled or self.closed):
            try:
                self._resume(stream, begins)
                full = len(stream.sequence) >= self._decoder.capacity and bool(stream.emitted)
                if full and not self._shift(stream):
                    return None
                return self._decoder.cycle(limit)
            except BaseException as error:
                self._current = None
                if not isinstance(error, EdgespecError):
                    self._decoder.forget()  # it may have come from anywhere, at any moment
                raise

    def retract(self, stream: Stream) -> None:
        """The stream has ended: cut the caches back to what it kept of its last cycle."""
        # Who has been followed by another has nothing in the caches.
        with suppress(CancelledError), self._turn(stream, lambda: self._current is not stream):
            self._decoder.keep(len(stream.sequence))
            self._current = None
        self._turns.end(stream)

    def interrupt(self, stream: Stream) -> None:
        """Stop this stream's running evaluation, if it has one; from any thread."""
        with self._switch:
            if self._current is stream:
                self._decoder.target.cancel()
                self._decoder.drafter.cancel()
        self._turns.wake()

    @contextmanager
    def borrowed(self, holder: object) -> Iterator[None]:
        """The decoder, for something else than a stream.

        Raises:
            CancelledError: it was closed meanwhile.
        """
        with self._turns.hold(holder, lambda: self.closed):
            yield
        self._turns.end(holder)

    def close(self, free: Callable[[], None]) -> None:
        """Stop what is running, which ends as if it had been cancelled; later calls do nothing.

        Args:
            free: frees what the decoder is made of, when nobody uses it any more. Where a
                callback of a generation closes, that is when its cycle has ended.
        """
        if self.closed:
            return
        self._free, self.closed = free, True
        current = self._current
        if current is not None:
            self.interrupt(current)
        if not self._turns.mine:
            self._end()

    def _end(self) -> None:
        with self._turns.hold(self):
            self._current = None
            free, self._free = self._free, _nothing
            free()
        self._turns.end(self)

    @contextmanager
    def _turn(self, stream: Stream, unwanted: Callable[[], bool]) -> Iterator[None]:
        """The decoder, for one cycle. Ctrl-C stops it, and is raised when caches are in step."""
        try:
            with (
                held_interrupts(lambda: self.interrupt(stream)) as came,
                self._turns.hold(stream, lambda: came() or unwanted()),
            ):
                yield
        finally:
            if self.closed and not self._turns.mine:
                self._end()  # `close` could not, where a callback of this cycle called it

    def _resume(self, stream: Stream, begins: Callable[[Stream], None]) -> None:
        """Make the decoder stand where this stream stands."""
        if self._current is stream:
            return
        with self._switch:
            self._current = stream
            self._decoder.target.resume()
            self._decoder.drafter.resume()
        if stream.cancelled or self.closed:
            self.interrupt(stream)
        begins(stream)
        if len(stream.sequence) < self._decoder.capacity or not stream.emitted:
            self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        tokens = np.array(stream.sequence, np.int32)
        self._decoder.begin(
            tokens,
            stream.settings,
            stream.statistics,
            stream.constraint,
            stream.trace,
            stream.logprobs,
            stream.progress,
        )

    def _shift(self, stream: Stream) -> bool:
        """Drop half of what lies behind the kept front, and evaluate the rest again.

        Not llama.cpp's shift of the cache, which leaves traces of the dropped tokens in the
        others' keys and values: the text goes on exactly as after a prompt of what is left.
        """
        if stream.limits.overflow != "shift":
            return False
        keep = min(stream.limits.keep, self._decoder.capacity // 2)
        dropped = (len(stream.sequence) - keep) // 2
        del stream.sequence[keep : keep + dropped]
        offset = stream.settings.stream_offset + dropped
        stream.settings = stream.settings._replace(stream_offset=offset)
        _log.info("context full: dropped %d tokens behind the first %d", dropped, keep)
        self._begin(stream)
        return True


def _nothing() -> None:
    pass
