"""Keep what is stored of a running conversation in step: its file, and its KV cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from edgespec.chat.archive import Archive, Journal
from edgespec.chat.events import ROLES, Conversation, Entry, header
from edgespec.errors import EdgespecError
from edgespec.files import cache_root

__all__ = ["CacheShelf", "Recorder", "State"]

Facts = Mapping[str, Mapping[str, Any]]


class State(NamedTuple):
    """A conversation at one moment.

    Attributes:
        texts: what user and model said, in turn.
        facts: for each name in `FACTS`.
    """

    texts: Sequence[str]
    facts: Facts


class Recorder:
    """Writes what is new in a conversation when it is told to.

    A file that cannot be written ends the storing, and nothing else.

    Args:
        archive: where files are written.
        keep: write files; otherwise everything is only remembered.
        warn: called with a line if files can no longer be written.
    """

    def __init__(self, archive: Archive, *, keep: bool, warn: Callable[[str], None]) -> None:
        self._archive = archive
        self._keep = keep
        self._warn = warn
        self._journal: Journal | None = None
        self._entries: list[Entry] = []
        self._written = 0  # of the entries
        self._facts: Facts = {}
        self._origin: str | None = None
        if keep and (problem := archive.problem()):
            self._fail(problem)

    @property
    def id(self) -> str | None:
        """Return the conversation's id, once something of it is stored."""
        return self._journal.id if self._journal else None

    @property
    def keeps(self) -> bool:
        """Return whether conversations are stored."""
        return self._keep

    @property
    def entries(self) -> Sequence[Entry]:
        """Return what was said, with times and details."""
        return self._entries

    def write(
        self,
        state: State,
        typed: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Write what the file does not say yet of the conversation as it stands now.

        Args:
            typed: the part of a new message that the user typed, if that is not all of it.
            details: about the last text.
        """
        self._take(state.texts, typed, details or {})
        if not self._keep or not state.texts:
            return
        try:
            self._write(state.facts)
        except EdgespecError as error:
            self._fail(str(error))

    def branch(self, texts: int) -> None:
        """Continue in another file, which begins with the first `texts` of this one."""
        origin, entries = self.id, self._entries[:texts]
        self.leave()
        self._origin, self._entries = origin, entries

    def resume(self, journal: Journal | None, conversation: Conversation) -> None:
        """Continue another conversation, in its file if there is one."""
        self.leave()
        self._journal = journal
        self._entries, self._facts = [*conversation.entries], dict(conversation.facts)
        self._written = len(self._entries)

    def leave(self) -> None:
        """Close the file: what follows is another conversation."""
        if self._journal is not None:
            self._journal.close()
        self._journal, self._origin = None, None
        self._entries, self._facts, self._written = [], {}, 0

    def _take(self, texts: Sequence[str], typed: str | None, details: Mapping[str, Any]) -> None:
        """Make the entries match the texts, from the first difference on."""
        same = _shared(self._entries, texts)
        if same == len(texts):
            return
        now, last = _now(), len(texts) - 1
        del self._entries[same:]
        for at in range(same, len(texts)):
            about = details if at == last else {}
            part = typed if at == last and typed != texts[at] else None
            self._entries.append(Entry(ROLES[at % 2], texts[at], now, part, about))
        self._written = min(self._written, same)

    def _write(self, facts: Facts) -> None:
        now = _now()
        events: list[Mapping[str, Any]] = [
            {"type": name, "time": now, **fact}
            for name, fact in facts.items()
            if fact != self._facts.get(name)
        ]
        new = enumerate(self._entries[self._written :], self._written)
        events += [entry.event(at) for at, entry in new]
        if not events:
            return
        if self._journal is None:
            self._journal = self._archive.create()
            events.insert(0, header(self._journal.id, now, self._origin))
        self._journal.append(events)
        self._facts, self._written = dict(facts), len(self._entries)

    def _fail(self, problem: str) -> None:
        self._keep = False
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._warn(f"the conversation is not stored: {problem}")


def _shared(entries: Sequence[Entry], texts: Sequence[str]) -> int:
    """Return how many texts at the front are those of the entries."""
    pairs = zip(entries, texts, strict=False)
    return next(
        (at for at, (entry, text) in enumerate(pairs) if entry.content != text),
        min(len(entries), len(texts)),
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# -- KV caches ----------------------------------------------------------------------------------

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
