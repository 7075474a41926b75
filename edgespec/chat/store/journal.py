"""The file of one conversation: lines are only ever added, each before anything else happens."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from time import time
from typing import Any

from edgespec.chat.files import reason
from edgespec.chat.store.events import Conversation, encode, replay
from edgespec.errors import EdgespecError, UsageError

__all__ = ["MOST_BYTES", "SUFFIX", "Journal", "is_id", "whole_lines"]

MOST_BYTES = 16 << 20
"""A longer file is neither read nor written."""

SUFFIX = ".jsonl"

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: none looks like another
_ID_LENGTH = 7  # seconds since 1970, until the year 3058


class Journal:
    """Open for appending, and locked: no other process writes into it.

    Attributes:
        id: short, and in the order in which conversations were begun.
    """

    def __init__(self, id: str, descriptor: int, size: int) -> None:
        self.id = id
        self._descriptor = descriptor
        self._size = size

    @classmethod
    def create(cls, folder: Path) -> Journal:
        """A new file, for the user only, with an id that no other has.

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
        """Go on with a file; what a crash left of a last line is cut off.

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
        """Write lines; they are on the disk when this returns.

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
    """Whether a conversation could have this id."""
    return len(text) == _ID_LENGTH and all(digit in _DIGITS for digit in text)


def whole_lines(data: bytes) -> list[bytes]:
    """Lines that were written to their end."""
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
    """Whether it could be locked; the system unlocks it when the process ends, however it does."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
