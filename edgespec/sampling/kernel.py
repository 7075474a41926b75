"""Compiled functions: their decorator (no interpreter lock, cached), and the arrays they work in.

Numba keys its cache by the file of one function, not by those of the functions it calls. So the
name of our cache folder has a hash over the sources of all kernels that a package can call: stale
code is never loaded. The folder is the user's, so that a read-only installation is as fast as any;
where that cannot be written, or its disk is full, it is a private one for temporary files.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.files import cache_root

__all__ = [
    "Workspace",
    "cache_folder",
    "edit",
    "kernel",
    "make_workspace",
    "native_callback",
    "release_compiler",
    "replaced_folder",
    "undo",
]

_MADV_DONTNEED = 4

_PACKAGES = ("sampling", "speculation", "control", "drafters")
"""Each may call kernels of the ones before it."""

_ROOM = 64 << 20
"""Bytes: what all compiled kernels take, several times."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile at the first call, or load from the cache; release the interpreter lock.

    Type checkers see the function that the kernel was made from, so calls are checked.
    """
    _name_file(function)
    compiled = numba.njit(nogil=True)(function)
    with _numba_cache(function) as usable:
        if usable:
            compiled.enable_caching()
    return cast(Function, compiled)


def native_callback(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile to a C function pointer that native code can call without the interpreter."""

    def decorate(function: Callable[..., Any]) -> Any:
        _name_file(function)
        with _numba_cache(function) as usable:
            return numba.cfunc(signature, cache=usable)(function)

    return decorate


@cache
def cache_folder(package: str = "sampling") -> Path | None:
    """Return the folder of a package's compiled kernels; None if none can be written."""
    known = package in _PACKAGES
    used = _PACKAGES[: _PACKAGES.index(package) + 1] if known else (*_PACKAGES, package)
    digest = hashlib.sha256()
    for name in used:
        for source in sorted((Path(__file__).parent.parent / name).glob("*.py")):
            digest.update(source.read_bytes())
    root = _root()
    return None if root is None else _usable(root / digest.hexdigest()[:16])


def release_compiler() -> None:
    """Let go of the pages of LLVM's code: all is compiled, and what is needed is read again.

    They are the file's own, never written, and 50 MiB of what a process holds. Linux only.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError):
        advise = ctypes.CDLL(None).madvise
        for line in Path("/proc/self/maps").read_text("ascii", "replace").splitlines():
            addresses, access, *rest = line.split(maxsplit=5)
            if access == "r-xp" and Path(rest[-1]).name.startswith("libllvmlite"):
                begin, end = (int(address, 16) for address in addresses.split("-"))
                advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def replaced_folder() -> str | None:
    """Say where compiled kernels are kept if it is not in the user's cache folder."""
    usual, root = _usual_folder(), _root()
    if root == usual:
        return None
    instead = f"are kept in {root}" if root else "are compiled again at every start"
    return f"{usual} cannot be written, or its disk is full: kernels {instead}"


def _usual_folder() -> Path:
    return cache_root() / "kernels"


@cache
def _root() -> Path | None:
    """Return the folder of all compiled kernels; None if none can be written."""
    return _usable(_usual_folder()) or _private_folder()


def _private_folder() -> Path | None:
    """Return a folder for temporary files that nobody else can write: what is in it is run."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"edgespec-kernels-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    foreign = hasattr(os, "getuid") and (status.st_uid != user or status.st_mode & 0o077)
    return None if foreign or not stat.S_ISDIR(status.st_mode) else _usable(folder)


def _usable(folder: Path) -> Path | None:
    """Return a folder, made where it is missing, if there is room to write in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:  # there may be a quota
            file.write(bytes(1 << 16))
        return folder if shutil.disk_usage(folder).free >= _ROOM else None
    except OSError:
        return None


def _name_file(function: Callable[..., Any]) -> None:
    """Give a packed program's function a file that exists, which Numba's cache asks for.

    The one file that has the same name at every start is the executable. The module's name keeps
    apart what is told apart by files elsewhere.
    """
    if getattr(sys, "frozen", False):
        function.__code__ = function.__code__.replace(co_filename=sys.executable)
        function.__qualname__ = f"{function.__module__}.{function.__qualname__}"


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


_EDITS = 3  # of one logit, at most: bias, penalties, DRY


class Workspace(NamedTuple):
    """Scratch arrays of one thread, n_vocab entries each (edited and saved: three times that).

    `counts` is zero between calls. `repeats` is for DRY, as long as the longest history.
    """

    keys: Float32Array
    tokens: Int32Array
    order: Float32Array
    logit_of: Float32Array
    counts: Int32Array
    edited: Int32Array
    saved: Float32Array
    repeats: Int32Array


def make_workspace(n_vocab: int, n_history: int = 0) -> Workspace:
    """Allocate what `distribution` needs.

    Args:
        n_vocab: number of tokens.
        n_history: the longest history. If it turns out longer, DRY is slow but still right.
    """
    return Workspace(
        keys=np.empty(n_vocab, np.float32),
        tokens=np.empty(n_vocab, np.int32),
        order=np.empty(n_vocab, np.float32),
        logit_of=np.empty(n_vocab, np.float32),
        counts=np.zeros(n_vocab, np.int32),
        edited=np.empty(_EDITS * n_vocab, np.int32),
        saved=np.empty(_EDITS * n_vocab, np.float32),
        repeats=np.empty(n_history, np.int32),
    )


@kernel
def edit(
    logits: Float32Array, token: int, value: float, n_edited: int, workspace: Workspace
) -> int:
    """Change one logit and remember the old value; return the number of edits so far."""
    workspace.edited[n_edited] = token
    workspace.saved[n_edited] = logits[token]
    logits[token] = value
    return n_edited + 1


@kernel
def undo(logits: Float32Array, n_edited: int, workspace: Workspace) -> None:
    """Restore what `edit` changed, the last change first."""
    for i in range(n_edited - 1, -1, -1):
        logits[workspace.edited[i]] = workspace.saved[i]
