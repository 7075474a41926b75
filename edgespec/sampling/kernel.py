"""The decorator of every compiled function: native code without the interpreter lock, cached.

Numba keys its cache by the file of one function, not by those of the functions it calls. Here
the folder's name has a hash over the sources of all kernels a room can call, so that no stale
code is ever loaded, and the folder is the user's, so that a read-only installation is as fast as
any other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from edgespec.files import cache_root

__all__ = ["cache_folder", "kernel", "native_callback"]

_ROOMS = ("sampling", "speculation", "control", "drafters")
"""Each may call kernels of those before it."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile at the first call, or load from the cache; releases the interpreter lock.

    To a type checker the kernel is the function it was made from: calls are checked.
    """
    compiled = numba.njit(nogil=True)(function)
    with _numba_cache(function) as usable:
        if usable:
            compiled.enable_caching()
    return cast(Function, compiled)


def native_callback(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile to a C function pointer that native code may call without the interpreter."""

    def decorate(function: Callable[..., Any]) -> Any:
        with _numba_cache(function) as usable:
            return numba.cfunc(signature, cache=usable)(function)

    return decorate


@cache
def cache_folder(room: str = "sampling") -> Path | None:
    """Where a room's compiled kernels are kept; None if no such folder can be written."""
    package = Path(__file__).parent.parent
    rooms = _ROOMS[: _ROOMS.index(room) + 1] if room in _ROOMS else (*_ROOMS, room)
    digest = hashlib.sha256()
    for name in rooms:
        for source in sorted((package / name).glob("*.py")):
            digest.update(source.read_bytes())
    folder = cache_root() / "kernels" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def _numba_cache(function: Callable[..., Any]) -> Iterator[bool]:
    """Point Numba's cache at ours, for one function: the host program's own stays its own."""
    package, _, rest = function.__module__.partition(".")
    folder = cache_folder(rest.partition(".")[0] if package == "edgespec" else "")
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or "")
    try:
        yield folder is not None
    finally:
        numba.config.CACHE_DIR = before
