"""The decorator of every compiled function: native code without the interpreter lock, cached.

Numba keys its cache by the file of one function, not by those of the functions it calls. So the
name of our cache folder has a hash over the sources of all kernels that a package can call: stale
code is never loaded. The folder is the user's, so that a read-only installation is as fast as any;
where that cannot be written, or its disk is full, it is a private one for temporary files.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.files import cache_root

__all__ = [
    "PURPOSE_ACCEPT",
    "PURPOSE_DRAFT",
    "PURPOSE_NOISE",
    "PURPOSE_TARGET",
    "PURPOSE_XTC",
    "cache_folder",
    "kernel",
    "native_callback",
    "noise_uniform",
    "race",
    "replaced_folder",
    "stream",
    "uniform",
]

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


PURPOSE_TARGET = 1  # draws from p or from the residual
PURPOSE_DRAFT = 2  # draws from q
PURPOSE_ACCEPT = 3  # the acceptance test
PURPOSE_NOISE = 4  # Gumbel noise shared by draft and target
PURPOSE_XTC = 5  # whether the most likely tokens are excluded

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


@kernel
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    mixed: np.uint64 = x ^ (x >> np.uint64(31))
    return mixed


@kernel
def _unit(x: np.uint64) -> float:
    # The half step keeps 0 and 1 out, so that log(u) is always finite.
    return (float(x >> np.uint64(11)) + 0.5) * _TO_UNIT


@kernel
def stream(seed: int, position: int, purpose: int) -> np.uint64:
    """Return the 64-bit key of one draw: uint64 from (seed, position, purpose).

    The seed is an int64 with the bits of the user's unsigned number, so that all calls have the
    same signature.
    """
    key = _mix(np.uint64(seed) + _WEYL)
    key = _mix(key + (np.uint64(position) + np.uint64(1)) * _WEYL)
    return _mix(key + (np.uint64(purpose) + np.uint64(1)) * _WEYL)


@kernel
def uniform(seed: int, position: int, purpose: int) -> float:
    """Return one float64 in the open interval (0, 1)."""
    return _unit(stream(seed, position, purpose))


@kernel
def noise_uniform(key: np.uint64, token: int) -> float:
    """Return the uniform number behind a token's noise under a `stream` key: float64 in (0, 1)."""
    return _unit(_mix(key + (np.uint64(token) + np.uint64(1)) * _WEYL))


@kernel
def race(weights: Float32Array, tokens: Int32Array, count: int, key: np.uint64) -> int:
    """Return the winner of an exponential race: argmax of log w(v) + Gumbel(key, v).

    Gumbel-max (Gumbel 1954) in its exponential form: E(v) = -log u(v) is exponential, and
    argmin E(v) / w(v) is distributed as w normalized. Two distributions raced under one key
    agree with probability at least (1 - TV) / (1 + TV) (Daliri et al. 2024).

    Args:
        weights: float32 (n_vocab,), non-negative, normalized or not.
        tokens: int32, the tokens that may have weight, in its first `count` entries.
        count: how many tokens to look at.
        key: from `stream`.
    """
    best, winner = math.inf, -1
    for i in range(count):
        token = tokens[i]
        weight = weights[token]
        if weight <= 0.0:
            continue
        u = noise_uniform(key, token)
        # -log(u) >= 1 - u: most tokens lose on this bound and need no logarithm.
        if (1.0 - u) >= best * weight:
            continue
        arrival = -math.log(u) / weight
        if arrival < best:
            best, winner = arrival, token
    return winner
