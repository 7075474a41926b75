"""What callers may pass to a template, and the forms of a conversation that templates expect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgespec.errors import UsageError

__all__ = ["Message", "fold_system", "plain", "plain_message"]

Message = Mapping[str, Any]

_INPUT_DEPTH = 48  # leaves a template room to wrap what it is given
_ARGUMENTS_DEPTH = 4  # of message.tool_calls[i].function.arguments


def plain_message(message: Message) -> dict[str, Any]:
    """Copy a message; the copy's content is text or None.

    The copy has the arguments of tool calls as objects, even if the message has them as JSON text,
    as in OpenAI's interface: templates write them as JSON.

    Raises:
        UsageError: the message is not of the form that `ChatTemplate.render` takes.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError("a message has to be an object with a role, e.g. 'user'")
    copy: dict[str, Any] = plain(message)
    content = copy.get("content")
    if isinstance(content, list):
        copy["content"] = "\n".join(_part_text(part) for part in content)
    elif not isinstance(content, (str, type(None))):
        raise UsageError("the content of a message has to be text or a list of text parts")
    for function in _called(copy):
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _object_or_text(function["arguments"])
    return copy


def _part_text(part: Any) -> str:
    text = part if isinstance(part, str) else None
    if isinstance(part, dict) and part.get("type", "text") == "text":
        text = part.get("text")
    if not isinstance(text, str):
        raise UsageError("a message has a part that is not text: send parts of type 'text' only")
    return text


def _called(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield function


def _object_or_text(text: str) -> Any:
    """Return the JSON object in a text; the text itself if it holds anything else."""
    try:
        value = plain(json.loads(text, parse_constant=_no_constant), _ARGUMENTS_DEPTH)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def plain(value: Any, depth: int = 0) -> Any:
    """Copy a value into JSON's types, so that templates cannot reach the caller's objects."""
    if depth > _INPUT_DEPTH:
        raise UsageError("a message or a tool is nested too deeply")
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain(item, depth + 1) for item in value]
    raise UsageError(f"a message or a tool has a value of type {type(value).__name__}, not JSON's")


def fold_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Move the system text in front of the first user message; None if there is none."""
    if not messages or messages[0]["role"] != "system":
        return None
    rest = messages[1:]
    for index, message in enumerate(rest):
        if message["role"] == "user":
            text = f"{messages[0].get('content') or ''}\n\n{message.get('content') or ''}"
            return [*rest[:index], {**message, "content": text}, *rest[index + 1 :]]
    return None
