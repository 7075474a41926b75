"""Where Ctrl-C would leave something half done, it is held back until that is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["held_interrupts"]


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
