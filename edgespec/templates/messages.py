"""What callers may pass to a template, and the forms of a conversation that templates expect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgespec.errors import UsageError

__all__ = [
    "Message",
    "as_parts",
    "fold_system",
    "join_turns",
    "plain",
    "plain_message",
    "with_arguments_as_text",
]

Message = Mapping[str, Any]

_INPUT_DEPTH = 48  # leaves a template room to wrap what it is given
_ARGUMENTS_DEPTH = 4  # of message.tool_calls[i].function.arguments
_REASONING = ("reasoning_content", "reasoning", "thinking")
"""The names under which templates look for what a model thought before it answered."""


def plain_message(message: Message) -> dict[str, Any]:
    """Copy a message; the copy's content is text.

    Many templates know neither a content of None nor an empty list of calls: the one becomes an
    empty text, the other is left out. The copy has the arguments of tool calls as objects, even if
    the message has them as JSON text, as in OpenAI's interface: templates write them as JSON. No
    arguments are an empty object. The role "developer" becomes "system", which it was before.

    Raises:
        UsageError: the message is not of the form that `ChatTemplate.render` takes.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError("a message has to be an object with a role, e.g. 'user'")
    copy: dict[str, Any] = plain(message)
    content = copy.get("content")
    if isinstance(content, list):
        copy["content"] = "\n".join(_part_text(part) for part in content)
    elif content is None:
        copy["content"] = ""
    elif not isinstance(content, str):
        raise UsageError("the content of a message has to be text or a list of text parts")
    if copy["role"] == "developer":
        copy["role"] = "system"
    if not copy.get("tool_calls", True):
        del copy["tool_calls"]
    for function in _called(copy):
        function["arguments"] = _as_object(function.get("arguments"))
    thought = next((copy[key] for key in _REASONING if isinstance(copy.get(key), str)), None)
    if thought is not None:
        copy.update(dict.fromkeys(_REASONING, thought))
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


def _as_object(arguments: Any) -> Any:
    """Return arguments as an object; as they are if they are neither that nor the JSON of one."""
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        value = plain(json.loads(arguments, parse_constant=_no_constant), _ARGUMENTS_DEPTH)
    except (ValueError, RecursionError):
        return arguments
    return {} if value is None else value if isinstance(value, dict) else arguments


def as_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with each text as a list of parts."""
    return [
        {**message, "content": [{"type": "text", "text": text}] if text else []}
        for message, text in ((one, one["content"]) for one in messages)
    ]


def with_arguments_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the arguments of calls as JSON."""
    copies: list[dict[str, Any]] = plain(messages)
    for message in copies:
        for function in _called(message):
            if not isinstance(function["arguments"], str):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return copies


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
            return [*rest[:index], _joined(messages[0], message), *rest[index + 1 :]]
    return None


def join_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Join texts that one side said in a row; None if there are none."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and _one_turn(joined[-1], message):
            joined[-1] = _joined(joined[-1], message)
        else:
            joined.append(message)
    return joined if len(joined) < len(messages) else None


def _one_turn(first: dict[str, Any], second: dict[str, Any]) -> bool:
    same = first["role"] == second["role"] != "tool"
    return same and "tool_calls" not in first and "tool_calls" not in second


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    texts = [text for text in (first["content"], second["content"]) if text]
    return {**second, "content": "\n\n".join(texts)}
