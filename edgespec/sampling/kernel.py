"""The decorator of every compiled function: native code without the interpreter lock, cached.

Numba keys its cache by the file of one function, not by those of the functions it calls. So the
name of our cache folder has a hash over the sources of all kernels that a package can call: stale
code is never loaded. The folder is the user's, so that a read-only installation is as fast as any.
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

_PACKAGES = ("sampling", "speculation", "control", "drafters")
"""Each may call kernels of the ones before it."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile at the first call, or load from the cache; release the interpreter lock.

    Type checkers see the function that the kernel was made from, so calls are checked.
    """
    compiled = numba.njit(nogil=True)(function)
    with _numba_cache(function) as usable:
        if usable:
            compiled.enable_caching()
    return cast(Function, compiled)


def native_callback(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile to a C function pointer that native code can call without the interpreter."""

    def decorate(function: Callable[..., Any]) -> Any:
        with _numba_cache(function) as usable:
            return numba.cfunc(signature, cache=usable)(function)

    return decorate


@cache
def cache_folder(package: str = "sampling") -> Path | None:
    """Return the folder of a package's compiled kernels; None if it cannot be written."""
    known = package in _PACKAGES
    used = _PACKAGES[: _PACKAGES.index(package) + 1] if known else (*_PACKAGES, package)
    digest = hashlib.sha256()
    for name in used:
        for source in sorted((Path(__file__).parent.parent / name).glob("*.py")):
            digest.update(source.read_bytes())
    folder = cache_root() / "kernels" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def _numba_cache(function: Callable[..., Any]) -> Iterator[bool]:
    """Use our cache folder for one function, and leave the host program's setting as it was."""
    package, _, rest = function.__module__.partition(".")
    folder = cache_folder(rest.partition(".")[0] if package == "edgespec" else "")
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or "")
    try:
        yield folder is not None
    finally:
        numba.config.CACHE_DIR = before
