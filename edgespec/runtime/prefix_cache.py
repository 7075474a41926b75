"""Caches of earlier texts, kept in memory and in files, so that a text is read only once.

A file is believed only if it is whole, and of this model, build and setting.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections import deque
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from edgespec._types import ByteArray, Int32Array
from edgespec.backend import Context
from edgespec.errors import BackendError, EdgespecError
from edgespec.files import replacing
from edgespec.runtime.memory import available_memory

__all__ = ["PrefixCache", "SavedPrefix", "read_cache", "shared_length", "write_cache"]

_log = logging.getLogger("edgespec.prefixes")


_WORTH_KEEPING = 64
"""Tokens: fewer are read about as fast as a cache is copied."""

_MAGIC = b"edgespec-cache 2\n"
_LENGTHS = struct.Struct("<QQQ")  # tokens, lowest, bytes of state
_KEY_BYTES = _DIGEST_BYTES = 32


class SavedPrefix(NamedTuple):
    """The state of a context's cache that holds these tokens.

    Attributes:
        tokens: int32 (n,).
        state: uint8 (bytes,), as `Context.save_state` gave it.
        lowest: the fewest tokens that it can be cut to, as `Context.lowest` said.
    """

    tokens: Int32Array
    state: ByteArray
    lowest: int = 0

    @classmethod
    def of(cls, context: Context, held: Int32Array) -> SavedPrefix:
        """Copy the cache of a context, which holds these tokens.

        Raises:
            BackendError: llama.cpp could not copy it.
        """
        return cls(held.copy(), context.save_state(), context.lowest)

    def known(self, tokens: Int32Array) -> int:
        """Return how many tokens of a text it can be cut back to; 0 if it cannot."""
        shared = shared_length(self.tokens, tokens)
        return shared if shared >= self.lowest else 0


class PrefixCache:
    """What a context's cache held before it was needed for another text.

    Not thread-safe: it belongs to whoever has the decoder.

    Args:
        limit: bytes that all states together may take; 0 keeps none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._saved: deque[SavedPrefix] = deque()  # used last at the end

    def switch(self, context: Context, held: Int32Array, tokens: Int32Array) -> int:
        """Make the context ready for another text, by what is known of it.

        What the cache holds and the text does not share is kept, if it is worth it; a saved
        state takes its place where that shares more.

        Args:
            held: the tokens that the cache holds, int32 (context.length,).
            tokens: the text, int32 (n,), of which the last is not to be in the cache.

        Returns:
            The number of tokens of the text that the cache held before.
        """
        wanted = tokens[:-1]
        shared = shared_length(held, wanted)
        if len(held) - shared >= _WORTH_KEEPING:
            self._save(context, held)
        best = self.find(wanted)
        known = 0 if best is None else best.known(wanted)
        if best is not None and known - shared >= _WORTH_KEEPING:
            self._restore(context, best)
            context.truncate(known)
        else:
            context.truncate(shared)
        return shared

    def add(self, prefix: SavedPrefix) -> bool:
        """Keep a state, in place of those that it can be cut to, and drop the oldest for it.

        Returns:
            False if it is larger than all of them may be; the others stay then.
        """
        if prefix.state.nbytes > self._limit:
            return False
        self._saved = deque(one for one in self._saved if not _covers(prefix, one.tokens))
        self._saved.append(prefix)
        while self.nbytes > self._limit:
            self._saved.popleft()
        return True

    def find(self, tokens: Int32Array) -> SavedPrefix | None:
        """Return the saved state that can be cut back to most of a text, if any can."""
        best = max(self._saved, key=lambda one: one.known(tokens), default=None)
        return best if best is not None and best.known(tokens) else None

    def best(self, context: Context, held: Int32Array, tokens: Int32Array) -> SavedPrefix | None:
        """Return the state that knows most of a text: a saved one, or what the context holds.

        Args: as for `switch`.
        """
        found = self.find(tokens)
        known = 0 if found is None else found.known(tokens)
        shared = shared_length(held, tokens)
        if shared > known and shared >= context.lowest:
            return SavedPrefix.of(context, held)
        return found

    def clear(self) -> None:
        """Forget all of them."""
        self._saved.clear()

    @property
    def nbytes(self) -> int:
        """Bytes that the states take."""
        return sum(one.state.nbytes for one in self._saved)

    def _save(self, context: Context, held: Int32Array) -> None:
        if any(_covers(one, held) for one in self._saved):
            return
        size = context.state_size()
        if size > self._limit or 2 * size > available_memory():
            return
        self.add(SavedPrefix.of(context, held))
        _log.debug("kept a cache of %d tokens, %d bytes", len(held), size)

    def _restore(self, context: Context, best: SavedPrefix) -> None:
        self._saved = deque(one for one in self._saved if one is not best)
        try:
            context.restore_state(best.state)
        except BackendError as error:
            _log.warning("%s", error)  # it is read again
            return
        self._saved.append(best)
        _log.debug("brought back a cache of %d tokens", len(best.tokens))


def shared_length(one: Int32Array, other: Int32Array) -> int:
    """Return how many tokens at the front are the same."""
    limit = min(len(one), len(other))
    differs = np.flatnonzero(one[:limit] != other[:limit])
    return int(differs[0]) if len(differs) else limit


def _covers(saved: SavedPrefix, beginning: Int32Array) -> bool:
    """Return whether a state can be cut back to this text."""
    return saved.known(beginning) == len(beginning)


# -- in files -------------------------------------------------------------------------------


def write_cache(path: Path, key: str, prefix: SavedPrefix) -> None:
    """Write it, readable for the user only; an older file is replaced in one step.

    Args:
        key: what the state depends on, in a few words.

    Raises:
        EdgespecError: the file cannot be written.
    """
    tokens = np.ascontiguousarray(prefix.tokens, "<i4")
    lengths = _LENGTHS.pack(len(tokens), prefix.lowest, prefix.state.nbytes)
    parts = (_hash(key), lengths, tokens.data, prefix.state.data)
    digest = hashlib.sha256()
    try:
        with replacing(path, private=True) as draft, draft.open("wb") as file:
            file.write(_MAGIC)
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
    except OSError as error:
        raise EdgespecError(f"cannot write {path}: {error.strerror or error}") from None


def read_cache(path: Path, key: str) -> SavedPrefix | None:
    """Read it and check every byte; None if it is missing, damaged, or of something else.

    llama.cpp takes what it is given for its own: nothing but what `write_cache` wrote reaches it.
    """
    try:
        if path.exists() and not path.is_file():
            return None  # opening a pipe would wait for its other end
        with path.open("rb") as file:
            return _read(file, key, os.fstat(file.fileno()).st_size)
    except (OSError, ValueError):
        return None


def _read(file: BinaryIO, key: str, size: int) -> SavedPrefix | None:
    head = file.read(len(_MAGIC) + _KEY_BYTES + _LENGTHS.size)
    if not head.startswith(_MAGIC) or len(head) < len(_MAGIC) + _KEY_BYTES + _LENGTHS.size:
        return None
    key_at, lengths_at = len(_MAGIC), len(_MAGIC) + _KEY_BYTES
    n_tokens, lowest, n_state = _LENGTHS.unpack(head[lengths_at:])
    whole = len(head) + 4 * n_tokens + n_state + _DIGEST_BYTES
    if head[key_at:lengths_at] != _hash(key) or size != whole:
        return None
    tokens = np.fromfile(file, "<i4", n_tokens)
    state = np.fromfile(file, np.uint8, n_state)
    digest = hashlib.sha256(head[key_at:])
    digest.update(tokens.data)
    digest.update(state.data)
    if digest.digest() != file.read(_DIGEST_BYTES):
        return None
    return SavedPrefix(tokens.astype(np.int32, copy=False), state, lowest)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
