"""Whose turn it is: one decoder, lent to one generation at a time, in fair slices."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from edgespec.errors import CancelledError, UsageError

__all__ = ["Turns"]

_SLICE_S = 1.0
_GRACE_S = 0.05


class Turns:
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
        """This generation needs no more turns."""
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
        """Seconds until the first in the queue may ask again; 0 if it may begin."""
        if self._busy:
            return None
        if self._holder is None or self._holder is holder:
            return 0.0
        if self._thread == threading.get_ident():
            return 0.0
        now = monotonic()
        return max(0.0, min(self._began + self._slice_s - now, self._left + self._grace_s - now))
