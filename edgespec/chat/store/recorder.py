"""Keep the file of a running conversation in step with what is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from edgespec.chat.store.archive import Archive, Journal
from edgespec.chat.store.events import ROLES, Conversation, Entry, header
from edgespec.errors import EdgespecError

__all__ = ["Recorder", "State"]

Facts = Mapping[str, Mapping[str, Any]]


class State(NamedTuple):
    """A conversation at a moment.

    Attributes:
        texts: what user and model said, in turn.
        facts: for each name in `FACTS`.
    """

    texts: Sequence[str]
    facts: Facts


class Recorder:
    """Writes what is new in a conversation, whenever it is told.

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
