"""Conversations in files: written whole or not at all, and believed only after a check."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from edgespec.errors import EdgespecError, UsageError
from edgespec.runtime.session import Message
from edgespec.sampling.parameters import SamplingParameters

__all__ = ["Conversation", "load_conversation", "save_conversation"]

_FORMAT = "edgespec-chat"
_VERSION = 1
_LARGEST = 16 * 2**20


@dataclass(frozen=True)
class Conversation:
    """What a file holds.

    Attributes:
        messages: an optional system prompt, then user and assistant in turn. A user's message at
            the end is one without an answer.
        model: name of the model that answered.
        sampling: of the answers.
    """

    messages: tuple[Message, ...]
    model: str
    sampling: SamplingParameters


def save_conversation(path: Path, conversation: Conversation) -> None:
    """Write a conversation as JSON; an older file is replaced in one step.

    Raises:
        EdgespecError: the file cannot be written.
    """
    data = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": conversation.model,
        "sampling": _sampling_as_json(conversation.sampling),
        "messages": [asdict(message) for message in conversation.messages],
    }
    text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    try:
        _replace(path.expanduser().resolve(), text.encode("utf-8"))
    except (OSError, RuntimeError, ValueError) as error:
        raise EdgespecError(f"cannot write {path}: {_reason(error)}") from None


def load_conversation(path: Path) -> Conversation:
    """Read a conversation and check all of it.

    Raises:
        UsageError: the file cannot be read, or is not a conversation.
    """
    try:
        data = json.loads(_read(path.expanduser()), parse_constant=_refuse_constant)
        return _conversation(data)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {_reason(error)}") from None
    except RecursionError:
        raise UsageError(f"{path} is not a saved conversation: it is nested too deeply") from None
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"{path} is not a saved conversation: {error}") from None


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST >> 20} MiB")
    return data.decode("utf-8")


def _conversation(data: Any) -> Conversation:
    _require(isinstance(data, dict) and data.get("format") == _FORMAT, f"no {_FORMAT!r} format")
    version = data.get("version")
    _require(version == _VERSION, f"version {version!r} is not known, only {_VERSION}")
    model, messages = data.get("model"), data.get("messages")
    _require(isinstance(model, str), "the model is not text")
    _require(isinstance(messages, list), "the messages are not a list")
    return Conversation(_messages(messages), model, _sampling(data.get("sampling")))


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


def _sampling(data: Any) -> SamplingParameters:
    _require(isinstance(data, dict), "the sampling parameters are not an object")
    defaults = {field.name: getattr(SamplingParameters(), field.name) for field in _FIELDS}
    unknown = sorted(set(data) - set(defaults))
    _require(not unknown, f"sampling parameter {unknown[:1]} is not known")
    values: dict[str, Any] = {
        name: _READERS[name](value) if name in _READERS else _number(name, value, defaults[name])
        for name, value in data.items()
    }
    return SamplingParameters(**values)


def _number(name: str, value: Any, default: float) -> float:
    kinds = (int,) if isinstance(default, int) else (int, float)
    _require(isinstance(value, kinds) and not isinstance(value, bool), f"{name} is {value!r}")
    return value  # type: ignore[no-any-return]


def _biases(value: Any) -> dict[int, float]:
    _require(isinstance(value, dict), "logit_bias is not an object")
    return {
        int(token): float("-inf") if bias == "-inf" else _number("logit_bias", bias, 0.0)
        for token, bias in value.items()
    }


def _texts(value: Any) -> tuple[str, ...]:
    _require(
        isinstance(value, list) and all(isinstance(text, str) for text in value),
        "dry_breakers is not a list of texts",
    )
    return tuple(value)


def _sampling_as_json(sampling: SamplingParameters) -> dict[str, Any]:
    values = {field.name: getattr(sampling, field.name) for field in _FIELDS}
    # JSON has no infinity.
    values["logit_bias"] = {
        str(token): "-inf" if bias == float("-inf") else bias
        for token, bias in sampling.logit_bias.items()
    }
    return values


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_FIELDS = fields(SamplingParameters)
_READERS = {"logit_bias": _biases, "dry_breakers": _texts}
