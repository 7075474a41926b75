"""How fast memory is read, which bounds how fast a model answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

__all__ = ["expected_speed", "memory_bandwidth"]

_READ = 256 << 20
"""Bytes: more than any cache."""

_SHARE = 0.9
"""Of that speed, with which a token reads the weights."""


def memory_bandwidth(threads: int) -> int:
    """Bytes a second that so many threads read together, by NumPy; the best of a few tries."""
    parts = [np.ones(_READ // threads // 8) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(5):
            started = perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(perf_counter() - started)
    return int(sum(part.nbytes for part in parts) / min(seconds))


def expected_speed(size: int, bandwidth: int) -> float:
    """Return tokens per second of plain decoding with a model of *size* bytes, at most about."""
    return _SHARE * bandwidth / size
