"""One decoder for many streams: whose turn it is, what a cancellation hits, and how it ends."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import numpy as np

from edgespec._types import Int32Array
from edgespec.errors import CancelledError, EdgespecError, UsageError
from edgespec.interrupts import held_interrupts
from edgespec.runtime.cycle import Cycle, LogprobReader, TokenLogprobs
from edgespec.runtime.decoder import Decoder
from edgespec.runtime.stream import Stream

__all__ = ["FairLock", "Scheduler"]

_log = logging.getLogger("edgespec.engine")

_SLICE_S = 1.0
_GRACE_S = 0.05


class Scheduler:
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
        self._lock = FairLock()
        # Reentrant, as a handler of a signal may cancel in the middle of it.
        self._switch = threading.RLock()  # guards which stream a cancellation would hit
        self._current: Stream | None = None

    @property
    def waiting(self) -> int:
        """How many generations wait for their turn."""
        return self._lock.waiting

    def advance(self, stream: Stream, limit: int, begins: Callable[[Stream], None]) -> Cycle | None:
        """Run one cycle for this stream; None when its context is full and may not be shifted.

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
                if stream.limits.overflow == "stop":
                    limit = min(limit, self._decoder.room)
                return self._decoder.cycle(limit)
            except BaseException as error:
                self._current = None
                if not isinstance(error, EdgespecError):
                    self._decoder.forget()  # it may have come from anywhere, at any moment
                raise

    def retract(self, stream: Stream) -> None:
        """Cut the caches back to what a stream that has ended kept of its last cycle."""
        # Who has been followed by another has nothing in the caches.
        with suppress(CancelledError), self._turn(stream, lambda: self._current is not stream):
            self._decoder.keep(len(stream.sequence))
            self._decoder.end()
            self._current = None
        self._lock.end(stream)

    def interrupt(self, stream: Stream) -> None:
        """Stop this stream's running evaluation, if it has one; from any thread."""
        with self._switch:
            if self._current is stream:
                self._decoder.target.cancel()
                self._decoder.drafter.cancel()
        self._lock.wake()

    @contextmanager
    def borrowed(self, holder: object) -> Iterator[None]:
        """Lend the decoder for something else than a stream.

        Raises:
            CancelledError: it was closed meanwhile.
        """
        with self._lock.hold(holder, lambda: self.closed):
            yield
        self._lock.end(holder)

    def score(self, tokens: Int32Array, reader: LogprobReader) -> list[TokenLogprobs]:
        """Return how likely each token but the first is after those before it.

        Raises: as `borrowed` and `Decoder.score`.
        """
        with self.borrowed(reader):
            self._current = None
            self._decoder.target.resume()
            return self._decoder.score(tokens, reader)

    def forget(self) -> None:
        """Empty all caches; a stream under way reads its text again.

        Raises: as `borrowed`.
        """
        with self.borrowed(object()):
            self._current = None
            self._decoder.prefix_cache.clear()
            self._decoder.forget()

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
        if not self._lock.mine:
            self._end()

    def _end(self) -> None:
        with self._lock.hold(self):
            self._current = None
            free, self._free = self._free, _nothing
            free()
        self._lock.end(self)

    @contextmanager
    def _turn(self, stream: Stream, unwanted: Callable[[], bool]) -> Iterator[None]:
        """Lend the decoder for a cycle. Ctrl-C stops it, and is raised when caches are in step."""
        try:
            with (
                held_interrupts(lambda: self.interrupt(stream)) as came,
                self._lock.hold(stream, lambda: came() or unwanted()),
            ):
                yield
        finally:
            if self.closed and not self._lock.mine:
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
            stream.kept,
            stream.most,
            stream.edit,
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


class FairLock:
    """A lock that is held for one cycle at a time, and changes hands seldom.

    Whoever comes first is first. A generation keeps its turn from cycle to cycle, because the
    cache has to be exchanged when another one goes on, until it ends, has had `slice_s` while
    others wait, or has not come back for `grace_s`: its reader may be slow, or gone. A thread
    that comes for another generation than before has left the earlier one idle, and does not
    wait for it; nothing that a thread holds can therefore keep itself waiting.

    Args:
        slice_s: seconds that a generation goes on while others wait.
        grace_s: seconds that others wait for one that is idle.
    """

    def __init__(self, slice_s: float = _SLICE_S, grace_s: float = _GRACE_S) -> None:
        self._slice_s, self._grace_s = slice_s, grace_s
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._holder: object | None = None
        self._thread = 0  # that used it last
        self._busy = False
        self._began = self._left = 0.0

    @contextmanager
    def hold(self, holder: object, unwanted: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Wait for a turn of `holder` and have it until the block ends.

        Raises:
            CancelledError: `unwanted` became true while waiting (see `wake`).
            UsageError: this thread has a turn already, and would wait for itself.
        """
        with self._changed:
            if self.mine:
                raise UsageError(
                    "a progress callback cannot use the engine that calls it: cancel the stream "
                    "there, and go on when it has ended"
                )
            self._wait(holder, unwanted)
            if self._holder is not holder:
                self._holder, self._began = holder, monotonic()
            self._thread, self._busy = threading.get_ident(), True
        try:
            yield
        finally:
            with self._changed:
                self._busy, self._left = False, monotonic()
                self._changed.notify_all()

    def end(self, holder: object) -> None:
        """Give up the turn for good: this generation has ended."""
        with self._changed:
            if self._holder is holder:
                self._holder = None
                self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait ask again whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    @property
    def mine(self) -> bool:
        """Whether the calling thread has the turn."""
        return self._busy and self._thread == threading.get_ident()

    @property
    def waiting(self) -> int:
        """How many generations wait for their turn."""
        return len(self._waiting)

    def _wait(self, holder: object, unwanted: Callable[[], bool]) -> None:
        ticket = object()
        if self._waiting and holder is self._holder and monotonic() < self._began + self._slice_s:
            self._waiting.appendleft(ticket)  # its slice is not over yet
        else:
            self._waiting.append(ticket)
        try:
            while True:
                if unwanted():
                    raise CancelledError("cancelled")
                pause = self._pause(holder) if self._waiting[0] is ticket else None
                if pause == 0.0:
                    return
                self._changed.wait(pause)
        finally:
            self._waiting.remove(ticket)
            self._changed.notify_all()

    def _pause(self, holder: object) -> float | None:
        """Return the seconds until the first in the queue may ask again; 0 if it may begin."""
        if self._busy:
            return None
        if self._holder is None or self._holder is holder:
            return 0.0
        if self._thread == threading.get_ident():
            return 0.0
        now = monotonic()
        return max(0.0, min(self._began + self._slice_s - now, self._left + self._grace_s - now))
