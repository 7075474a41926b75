"""The folder of all conversations."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path

from edgespec.chat.files import read_at_most, reason
from edgespec.chat.store.events import Conversation, replay
from edgespec.chat.store.journal import MOST_BYTES, SUFFIX, Journal, is_id, whole_lines
from edgespec.errors import EdgespecError, UsageError

__all__ = ["Archive"]

_MOST_DIGITS = 6


class Archive:
    """Conversations by their ids. Files are believed only after a check.

    Args:
        folder: made when something is written; by default in the user's data folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or user_data_path("edgespec", appauthor=False) / "conversations"

    def problem(self) -> str | None:
        """Why nothing can be stored, if so."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            return f"{self.folder}: {reason(error)}"
        writable = os.access(self.folder, os.W_OK | os.X_OK)
        return None if writable else f"{self.folder}: it cannot be written"

    def ids(self) -> list[str]:
        """Of all conversations, the one used last first."""
        found = []
        with suppress(OSError), os.scandir(self.folder) as files:
            for file in files:
                id = file.name.removesuffix(SUFFIX)
                if file.name.endswith(SUFFIX) and is_id(id):
                    with suppress(OSError):
                        facts = file.stat()
                        if facts.st_size:  # nothing was written into it before a crash
                            found.append((facts.st_mtime_ns, id))
        return [id for _, id in sorted(found, reverse=True)]

    def find(self, word: str, listed: Sequence[str] = ()) -> str:
        """The id that a user means: an id, or a number in what was listed last.

        Args:
            listed: ids; without any, all of them.

        Raises:
            UsageError: there is none.
        """
        if is_id(word):
            if self._path(word).exists():
                return word
        elif re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", word):
            ids = listed or self.ids()
            if 1 <= int(word) <= len(ids):
                return ids[int(word) - 1]
        raise UsageError(
            f"there is no conversation {word[:40]!r}: /list, or `edgespec chats list`, shows them"
        )

    def latest(self) -> str:
        """The id of the one used last.

        Raises:
            UsageError: there is none.
        """
        ids = self.ids()
        if not ids:
            raise UsageError("there is no stored conversation yet")
        return ids[0]

    def load(self, id: str) -> Conversation:
        """Read one.

        Raises:
            UsageError: it cannot be read, or is not a conversation.
        """
        path = self._path(id)
        try:
            return replay(id, whole_lines(read_at_most(path, MOST_BYTES)))
        except (OSError, ValueError) as error:
            raise _unusable(path, error) from None

    def open(self, id: str) -> tuple[Journal, Conversation]:
        """Read one to go on with it: the journal has to be closed.

        Raises:
            UsageError: as `load`, or it cannot be written, or another chat has it open.
        """
        path = self._path(id)
        try:
            return Journal.open(path)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            raise _unusable(path, error) from None

    def create(self) -> Journal:
        """A new one: the journal has to be closed.

        Raises:
            EdgespecError: the folder cannot be used.
        """
        try:
            return Journal.create(self.folder)
        except OSError as error:
            raise EdgespecError(f"{self.folder}: {reason(error)}") from None

    def remove(self, id: str) -> None:
        """Delete one.

        Raises:
            UsageError: another chat has it open.
            EdgespecError: it cannot be deleted.
        """
        path = self._path(id)
        try:
            Journal.open(path)[0].close()
        except UsageError:
            raise
        except (OSError, ValueError):
            pass  # a damaged one may be deleted as well
        try:
            path.unlink()
        except OSError as error:
            raise EdgespecError(f"cannot delete {path}: {reason(error)}") from None

    def conversations(self, report: Callable[[str], None]) -> Iterator[Conversation]:
        """All of them, the one used last first.

        Args:
            report: called with a line about each file that is not one.
        """
        for id in self.ids():
            try:
                yield self.load(id)
            except UsageError as error:
                report(str(error))

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{SUFFIX}"


def _unusable(path: Path, error: Exception) -> UsageError:
    if isinstance(error, OSError):
        return UsageError(f"cannot read {path}: {reason(error)}")
    return UsageError(f"{path} is not a stored conversation: {error}")
