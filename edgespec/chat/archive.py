"""Files of conversations: the folder of all, and those that the user names."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from time import time
from typing import Any

from platformdirs import user_data_path

from edgespec.chat.events import Conversation, Entry, encode, replay
from edgespec.chat.settings import read_sampling, sampling_as_json
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import read_at_most, reason, write_user_file
from edgespec.runtime.session import Message
from edgespec.sampling.parameters import SamplingParameters

__all__ = [
    "MOST_BYTES",
    "SUFFIX",
    "Archive",
    "Journal",
    "SavedConversation",
    "as_json",
    "as_markdown",
    "exporter",
    "is_id",
    "load_conversation",
    "save_conversation",
    "whole_lines",
]

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


_FORMAT = "edgespec-chat"
_VERSION = 1
_MOST_BYTES = 16 << 20
Exporter = Callable[[Conversation], str]


@dataclass(frozen=True)
class SavedConversation:
    """What a file holds.

    Attributes:
        messages: an optional system prompt, then user and assistant in turn. A user's message at
            the end is one without an answer.
        model: name of the model that answered.
        sampling: parameters of the answers.
    """

    messages: tuple[Message, ...]
    model: str
    sampling: SamplingParameters


def save_conversation(path: Path, conversation: SavedConversation, *, force: bool = False) -> None:
    """Write a conversation as JSON, over an older one in one step.

    Args:
        force: write over any other file too.

    Raises:
        UsageError: the file is something else.
        EdgespecError: it cannot be written.
    """
    if not force:
        _keep_others(path)
    data = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": conversation.model,
        "sampling": sampling_as_json(conversation.sampling),
        "messages": [asdict(message) for message in conversation.messages],
    }
    text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write_user_file(path, text.encode("utf-8"))


def load_conversation(path: Path) -> SavedConversation:
    """Read a conversation and check all of it.

    Raises:
        UsageError: the file cannot be read, or is not a conversation.
    """
    try:
        text = read_at_most(path.expanduser(), _MOST_BYTES).decode("utf-8")
        data = json.loads(text, parse_constant=_refuse_constant)
        return _conversation(data)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from None
    except RecursionError:
        raise UsageError(f"{path} is not a saved conversation: it is nested too deeply") from None
    except json.JSONDecodeError:
        raise UsageError(f"{path} is not a saved conversation: it is not JSON") from None
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"{path} is not a saved conversation: {error}") from None


def exporter(path: Path) -> Exporter:
    """Return what writes a file with this ending.

    Raises:
        UsageError: nothing does.
    """
    try:
        return {".json": as_json, ".md": as_markdown}[path.suffix.lower()]
    except KeyError:
        raise UsageError(f"{path}: the ending has to be .json or .md") from None


def as_json(conversation: Conversation) -> str:
    """Return JSON that `/load` reads, with times and figures added."""
    system = conversation.system
    messages = [{"role": "system", "content": system}] if system else []
    messages += [_exported(entry) for entry in conversation.entries]
    data = {
        "format": _FORMAT,
        "version": _VERSION,
        "id": conversation.id,
        "title": conversation.title,
        "created": conversation.created,
        "model": conversation.model,
        "sampling": conversation.facts.get("settings", {}).get("sampling", {}),
        "messages": messages,
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def as_markdown(conversation: Conversation) -> str:
    """Return Markdown with a heading for every message."""
    parts = [f"# {conversation.title or conversation.id}"]
    parts.append(f"{conversation.created}, {conversation.model}, conversation {conversation.id}")
    if conversation.system:
        parts.append(f"## System\n\n{conversation.system}")
    for entry in conversation.entries:
        who = "You" if entry.role == "user" else _model(entry.details, conversation.model)
        parts.append(f"## {who}\n\n{entry.content.strip()}")
    if conversation.unanswered:
        parts.append("*(no answer)*")
    return "\n\n".join(parts) + "\n"


def _keep_others(path: Path) -> None:
    if path.expanduser().is_file():
        try:
            load_conversation(path)
        except UsageError as error:
            raise UsageError(f"{error}: /save! writes over it") from None


def _conversation(data: Any) -> SavedConversation:
    _require(isinstance(data, dict) and data.get("format") == _FORMAT, f"no {_FORMAT!r} format")
    version = data.get("version")
    _require(version == _VERSION, f"version {version!r} is not known, only {_VERSION}")
    model, messages = data.get("model"), data.get("messages")
    _require(isinstance(model, str), "the model is not text")
    _require(isinstance(messages, list), "the messages are not a list")
    return SavedConversation(_messages(messages), model, read_sampling(data.get("sampling")))


def _messages(items: Sequence[Any]) -> tuple[Message, ...]:
    messages = tuple(_message(number, item) for number, item in enumerate(items, 1))
    start = 1 if messages and messages[0].role == "system" else 0
    for number, message in enumerate(messages[start:]):
        expected = ("user", "assistant")[number % 2]
        _require(
            message.role == expected,
            f"message {start + number + 1} is by {message.role!r} instead of {expected!r}",
        )
    return messages


def _message(number: int, item: Any) -> Message:
    _require(isinstance(item, dict), f"message {number} is not an object")
    role, content = item.get("role"), item.get("content")
    _require(isinstance(role, str), f"message {number} has no role")
    _require(isinstance(content, str), f"message {number} has no content")
    _require(not _has_surrogates(content), f"message {number} is not valid Unicode")
    return Message(role, content)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _exported(entry: Entry) -> dict[str, Any]:
    message: dict[str, Any] = {"role": entry.role, "content": entry.content, "time": entry.time}
    return {**message, "details": dict(entry.details)} if entry.details else message


def _model(details: Mapping[str, Any], usual: str) -> str:
    return str(details.get("model") or usual or "Model")
