"""A saved cache in a file: believed only if it is whole, and of this model, build and setting."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgespec.errors import EdgespecError
from edgespec.files import replacing
from edgespec.runtime.prefixes import SavedPrefix

__all__ = ["read_cache", "write_cache"]

_MAGIC = b"edgespec-cache 1\n"
_LENGTHS = struct.Struct("<QQ")  # tokens, bytes of state
_KEY_BYTES = _DIGEST_BYTES = 32


def write_cache(path: Path, key: str, prefix: SavedPrefix) -> None:
    """Write it, readable for the user only; an older file is replaced in one step.

    Args:
        key: what the state depends on, in a few words.

    Raises:
        EdgespecError: the file cannot be written.
    """
    tokens = np.ascontiguousarray(prefix.tokens, "<i4")
    lengths = _LENGTHS.pack(len(tokens), prefix.state.nbytes)
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
        with path.open("rb") as file:
            return _read(file, key, os.fstat(file.fileno()).st_size)
    except (OSError, ValueError):
        return None


def _read(file: BinaryIO, key: str, size: int) -> SavedPrefix | None:
    head = file.read(len(_MAGIC) + _KEY_BYTES + _LENGTHS.size)
    if not head.startswith(_MAGIC) or len(head) < len(_MAGIC) + _KEY_BYTES + _LENGTHS.size:
        return None
    key_at, lengths_at = len(_MAGIC), len(_MAGIC) + _KEY_BYTES
    n_tokens, n_state = _LENGTHS.unpack(head[lengths_at:])
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
    return SavedPrefix(tokens.astype(np.int32, copy=False), state)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
