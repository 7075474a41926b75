"""Finds texts that say nearly the same as one before: MinHash over their word triples."""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict

import numpy as np

from edgespec._types import AnyArray

__all__ = ["Seen"]

_WORDS = re.compile(r"\w+")
_SHINGLE = 3  # words
_BANDS, _ROWS = 16, 4
"""Texts that share seven tenths of their triples are found with 98%, three tenths with 12%."""

_ALIKE = 0.6
"""Share of equal hashes, an estimate of the share of common triples, from which texts are alike."""

_MOST = 200_000  # texts that are remembered


class Seen:
    """Remembers texts, the latest ones if they are very many."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._factors = random.integers(1 << 63, 1 << 64, _BANDS * _ROWS, np.uint64) | np.uint64(1)
        self._buckets: list[OrderedDict[bytes, AnyArray]] = [OrderedDict() for _ in range(_BANDS)]

    def add(self, text: str) -> bool:
        """Remember a text; return False, and do not, if one that is alike was added before."""
        hashes = self._hashes(text)
        keys = [band.tobytes() for band in hashes.reshape(_BANDS, _ROWS)]
        for key, bucket in zip(keys, self._buckets, strict=True):
            other = bucket.get(key)
            if other is not None and float(np.mean(other == hashes)) >= _ALIKE:
                return False
        for key, bucket in zip(keys, self._buckets, strict=True):
            bucket[key] = hashes
            if len(bucket) > _MOST:
                bucket.popitem(last=False)
        return True

    def _hashes(self, text: str) -> AnyArray:
        words = _WORDS.findall(text.lower())
        count = max(1, len(words) - _SHINGLE + 1)
        shingles = {" ".join(words[i : i + _SHINGLE]) for i in range(count)}
        values = np.array([zlib.crc32(s.encode()) for s in shingles], np.uint64)
        # The upper half of a product modulo 2 ** 64: every factor orders the triples differently.
        return ((values[:, None] * self._factors) >> np.uint64(32)).min(axis=0).astype(np.uint32)
