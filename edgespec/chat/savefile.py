"""A conversation in a file that the user names: `/save`, `/export` and `/load`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgespec.chat.events import Conversation, Entry
from edgespec.chat.settings import read_sampling, sampling_as_json
from edgespec.errors import UsageError
from edgespec.files import read_at_most, reason, write_user_file
from edgespec.runtime.session import Message
from edgespec.sampling.parameters import SamplingParameters

__all__ = [
    "SavedConversation",
    "as_json",
    "as_markdown",
    "exporter",
    "load_conversation",
    "save_conversation",
]

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
