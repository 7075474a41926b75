"""The folder of all conversations, and the file of each."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import time
from typing import Any

from platformdirs import user_data_path

from edgespec.chat.events import Conversation, encode, replay
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import read_at_most, reason

__all__ = ["MOST_BYTES", "SUFFIX", "Archive", "Journal", "is_id", "whole_lines"]

MOST_BYTES = 16 << 20
"""A longer file is neither read nor written."""
SUFFIX = ".jsonl"
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: none looks like another
_ID_LENGTH = 7  # seconds since 1970, until the year 3058
_MOST_DIGITS = 6


class Archive:
    """Conversations by their ids. Every file is checked when it is read.

    Args:
        folder: made when something is written; by default in the user's data folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or user_data_path("edgespec", appauthor=False) / "conversations"

    def problem(self) -> str | None:
        """Return why nothing can be stored, or None."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            return f"{self.folder}: {reason(error)}"
        writable = os.access(self.folder, os.W_OK | os.X_OK)
        return None if writable else f"{self.folder}: it cannot be written"

    def ids(self) -> list[str]:
        """Return the ids of all conversations, the one used last first."""
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
        """Return the id for an id, or for a number in the latest list.

        Args:
            listed: ids of the latest list; empty for all conversations.

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
        """Return the id of the conversation used last.

        Raises:
            UsageError: there is none.
        """
        ids = self.ids()
        if not ids:
            raise UsageError("there is no stored conversation yet")
        return ids[0]

    def load(self, id: str) -> Conversation:
        """Read a conversation.

        Raises:
            UsageError: it cannot be read, or is not a conversation.
        """
        path = self._path(id)
        try:
            return replay(id, whole_lines(read_at_most(path, MOST_BYTES)))
        except (OSError, ValueError) as error:
            raise _unusable(path, error) from None

    def open(self, id: str) -> tuple[Journal, Conversation]:
        """Open a conversation to continue it; the caller closes the journal.

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
        """Begin a new conversation; the caller closes the journal.

        Raises:
            EdgespecError: the folder cannot be used.
        """
        try:
            return Journal.create(self.folder)
        except OSError as error:
            raise EdgespecError(f"{self.folder}: {reason(error)}") from None

    def remove(self, id: str) -> None:
        """Delete a conversation.

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
        """Read all conversations, the one used last first.

        Args:
            report: called with a line about each file that is not a conversation.
        """
        for id in self.ids():
            try:
                yield self.load(id)
            except UsageError as error:
                report(str(error))

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{SUFFIX}"


class Journal:
    """The file of one conversation, open for appending and locked against other processes.

    Attributes:
        id: short; later conversations have larger ids.
    """

    def __init__(self, id: str, descriptor: int, size: int) -> None:
        self.id = id
        self._descriptor = descriptor
        self._size = size

    @classmethod
    def create(cls, folder: Path) -> Journal:
        """Make a new file, readable for the user only, with an unused id.

        Raises:
            OSError: the folder cannot be used.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in count(int(time())):
            id = _id(number)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
            try:
                descriptor = os.open(folder / f"{id}{SUFFIX}", flags, 0o600)
            except FileExistsError:
                continue
            try:
                _lock(descriptor)
            except OSError:
                os.close(descriptor)
                raise
            return cls(id, descriptor, 0)
        raise AssertionError

    @classmethod
    def open(cls, path: Path) -> tuple[Journal, Conversation]:
        """Open a file to continue it; the part of a last line that a crash left is cut off.

        Raises:
            OSError: it cannot be read or written.
            ValueError: it is not a conversation.
            UsageError: another chat has it open.
        """
        id = path.name.removesuffix(SUFFIX)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("it is not a regular file")
            if not _lock(descriptor):
                raise UsageError(f"{id} is open in another chat: leave it there first")
            data = _read(descriptor)
            conversation = replay(id, whole_lines(data))
            size = data.rfind(b"\n") + 1
            os.ftruncate(descriptor, size)
            return cls(id, descriptor, size), conversation
        except BaseException:
            os.close(descriptor)
            raise

    def append(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Write lines, and wait until the disk has them.

        Raises:
            EdgespecError: they cannot be written; none of them was.
        """
        data = encode(events)
        if self._size + len(data) > MOST_BYTES:
            raise EdgespecError(f"{self.id} would have more than {MOST_BYTES >> 20} MiB")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            raise EdgespecError(f"cannot write {self.id}: {reason(error)}") from None
        self._size += len(data)

    def close(self) -> None:
        """Close the file, which unlocks it."""
        os.close(self._descriptor)


def is_id(text: str) -> bool:
    """Return whether a conversation could have this id."""
    return len(text) == _ID_LENGTH and all(digit in _DIGITS for digit in text)


def whole_lines(data: bytes) -> list[bytes]:
    """Return the lines that were written to their end."""
    return data.split(b"\n")[:-1]


def _id(number: int) -> str:
    digits = []
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def _read(descriptor: int) -> bytes:
    if os.fstat(descriptor).st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read(MOST_BYTES)


def _lock(descriptor: int) -> bool:
    """Lock a file until the process ends; return whether that worked."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unusable(path: Path, error: Exception) -> UsageError:
    if isinstance(error, OSError):
        return UsageError(f"cannot read {path}: {reason(error)}")
    return UsageError(f"{path} is not a stored conversation: {error}")
