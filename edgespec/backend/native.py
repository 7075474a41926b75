"""The binding itself: imported once, initialized once, its log sent to `logging`."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import deque
from typing import Any

import llama_cpp as lib

from edgespec.errors import BackendError, UsageError

__all__ = ["claim_process", "initialize", "lib", "recent_errors"]

_log = logging.getLogger("edgespec.llama")
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}
_CONTINUED, _ERROR = 5, 4

_recent: deque[str] = deque(maxlen=4)
_lock = threading.Lock()
_initialized = False
_evaluating: int | None = None  # the process that has evaluated something


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _forward(level: int, text: bytes | None, _user_data: Any) -> None:
    """Log llama.cpp's lines at least one level lower: its callers raise its errors."""
    line = (text or b"").decode("utf-8", "replace").rstrip()
    if not line or level == _CONTINUED:
        return
    if level == _ERROR:
        _recent.append(line)
    _log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


def initialize() -> None:
    """Start the native library; later calls do nothing.

    Raises:
        BackendError: the installed binding is not of a version that this package supports.
    """
    global _initialized
    with _lock:
        if _initialized:
            return
        if not lib.__version__.startswith("0.3."):
            raise BackendError(
                f"llama-cpp-python {lib.__version__} is installed, edgespec needs 0.3.x: "
                "pip install 'llama-cpp-python~=0.3.36'"
            )
        lib.llama_log_set(_forward, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _initialized = True


def claim_process() -> None:
    """Note that this process is going to evaluate something.

    Raises:
        UsageError: it was forked from a process that did. The threads of GNU OpenMP are then gone,
            and waiting for them would never end.
    """
    global _evaluating
    if _evaluating not in (None, os.getpid()):
        raise UsageError(
            "this process was forked from one that had used a model: start it by multiprocessing's "
            "'spawn' or 'forkserver' method, or fork before the first model is loaded"
        )
    _evaluating = os.getpid()


def recent_errors() -> str:
    """Return llama.cpp's latest complaints for the end of an error message, and forget them."""
    text = " ".join("; ".join(_recent).split())
    _recent.clear()
    return text[:300]
