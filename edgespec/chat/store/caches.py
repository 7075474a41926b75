"""KV caches of conversations on disk, so that a long one need not be evaluated again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgespec.errors import EdgespecError
from edgespec.files import cache_root

__all__ = ["CacheShelf"]

_log = logging.getLogger("edgespec.chat")

_SUFFIX = ".kv"
_WORTH_SAVING = 256  # tokens: fewer are read again in a moment
_MOST_BYTES = 2 << 30


class Keeper(Protocol):
    """The part of an engine that is used here."""

    def save_cache(self, path: Path, tokens: Sequence[int]) -> int:
        """Write the cache of a text, and return how many tokens it holds."""

    def load_cache(self, path: Path) -> int:
        """Read a cache, and return how many tokens it holds."""


class CacheShelf:
    """A file for each conversation; losing one costs nothing but time.

    Args:
        folder: made when something is written; by default in the cache folder.
        most_bytes: limit for all files together; the oldest ones are removed first.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = _MOST_BYTES) -> None:
        self._folder = folder or cache_root() / "conversations"
        self._most_bytes = most_bytes

    def save(self, engine: Keeper, id: str, tokens: Sequence[int]) -> int:
        """Keep the cache of a conversation, if it is long enough; return its tokens, or 0."""
        if len(tokens) < _WORTH_SAVING:
            return 0
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            saved = engine.save_cache(self._path(id), tokens)
            self._shrink()
        except (OSError, EdgespecError) as error:
            _log.info("the cache of %s cannot be kept: %s", id, error)
            return 0
        return saved

    def load(self, engine: Keeper, id: str) -> int:
        """Give a cache back to an engine; return its tokens, or 0 if this engine cannot use it."""
        path = self._path(id)
        loaded = engine.load_cache(path)
        if loaded:
            with suppress(OSError):
                path.touch()
        return loaded

    def remove(self, id: str) -> None:
        """Delete the cache of a conversation, if there is one."""
        with suppress(OSError):
            self._path(id).unlink()

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}{_SUFFIX}"

    def _shrink(self) -> None:
        facts = {path: path.stat() for path in self._folder.glob(f"*{_SUFFIX}")}
        total = sum(one.st_size for one in facts.values())
        for path in sorted(facts, key=lambda path: facts[path].st_mtime_ns):
            if total <= self._most_bytes:
                return
            path.unlink()
            total -= facts[path].st_size
