"""Keep what is stored of a conversation: its file and KV cache, and files that the user names."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from edgespec.chat.archive import Archive, Journal
from edgespec.chat.events import ROLES, Conversation, Entry, header
from edgespec.chat.settings import read_sampling, sampling_as_json
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import cache_root, read_at_most, reason, write_user_file
from edgespec.runtime.session import Message
from edgespec.sampling.parameters import SamplingParameters

__all__ = [
    "CacheShelf",
    "Recorder",
    "SavedConversation",
    "State",
    "as_json",
    "as_markdown",
    "exporter",
    "load_conversation",
    "save_conversation",
]

_FORMAT = "edgespec-chat"
_VERSION = 1
_MOST_SAVED_BYTES = 16 << 20
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
        text = read_at_most(path.expanduser(), _MOST_SAVED_BYTES).decode("utf-8")
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
