"""OpenAI's Responses interface, in terms of the chat interface.

A request's items become messages; the chunks of a chat answer become events and, at the end, the
response.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.errors import UsageError

__all__ = ["ResponseEvents", "as_chat_choice", "as_chat_tools", "as_messages"]

Json = dict[str, Any]

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def as_messages(given: str | Sequence[Mapping[str, Any]], instructions: str | None) -> list[Json]:
    """Return the messages of a request's ``input`` and ``instructions``.

    Raises:
        UsageError: an item is of another form than text, a function's call or its output.
    """
    messages: list[Json] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    thoughts = ""
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        where = f"item {number}"
        if kind == "reasoning":
            thoughts = _text(item.get("content") or item.get("summary") or [], where)
            continue
        if kind == "function_call_output":
            text = _text(item.get("output"), where)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "message" and isinstance(item.get("role"), str):
            messages.append({"role": item["role"], "content": _text(item.get("content"), where)})
        else:
            raise UsageError(f"{where} is of type {str(kind)[:80]!r}, which is not supported")
        if thoughts and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thoughts
        thoughts = ""
    return messages


def as_chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return tools in the form of the chat interface.

    Raises:
        UsageError: one is no function.
    """
    converted = []
    for number, tool in enumerate(tools):
        if tool.get("type") != "function":
            kind = str(tool.get("type"))[:80]
            raise UsageError(f"tool {number} is of type {kind!r}: only functions are supported")
        names = ("name", "description", "parameters", "strict")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        converted.append({"type": "function", "function": function})
    return converted


def as_chat_choice(choice: Any) -> Any:
    """Return a ``tool_choice`` in the form of the chat interface."""
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    if choice.get("type") == "allowed_tools":
        allowed = [as_chat_choice(tool) for tool in choice.get("tools") or ()]
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": allowed},
        }
    return dict(choice)


def _add_call(messages: list[Json], item: Mapping[str, Any]) -> None:
    """Add a call to the assistant's last message, or to a new one."""
    function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise UsageError(f"{where} has no text")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "refusal":
            texts.append(str(part.get("refusal", "")))
        elif kind in _TEXTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise UsageError(
                f"{where} has a part of type {str(kind)[:80]!r}: only text is supported"
            )
    return "\n".join(texts)


class ResponseEvents:
    """Turns the chunks of one chat answer into the events of a response.

    Args:
        model: its name.
        facts: of the request, to be repeated in the response.
    """

    def __init__(self, model: str, facts: Json) -> None:
        self._number = -1
        self._output: list[Json] = []
        self._calls: dict[int, Json] = {}
        self._open: Json | None = None  # the item that is being written
        self._response: Json = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **facts,
        }

    def begin(self) -> list[Json]:
        """Return the events before the first text."""
        return [
            self._event("response.created", response=dict(self._response)),
            self._event("response.in_progress", response=dict(self._response)),
        ]

    def delta(self, delta: Mapping[str, Any]) -> list[Json]:
        """Return the events of a chunk's ``delta``, or of a whole answer's ``message``."""
        events: list[Json] = []
        if text := delta.get("reasoning_content"):
            events += self._write("reasoning", text)
        if text := delta.get("content"):
            events += self._write("message", text)
        for call in delta.get("tool_calls") or ():
            events += self._call(call)
        return events

    def finish(self, usage: Mapping[str, Any], *, complete: bool) -> list[Json]:
        """Return the events behind the last text.

        Args:
            usage: of the chat interface.
            complete: whether the model ended the answer itself.
        """
        events = self._close()
        status = "completed" if complete else "incomplete"
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self._response |= {
            "status": status,
            "output": self._output,
            "incomplete_details": None if complete else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }
        return [*events, self._event(f"response.{status}", response=self.response)]

    def fail(self, error: Mapping[str, Any]) -> list[Json]:
        """Return the event of an error."""
        told = {name: error.get(name) for name in ("code", "message", "param")}
        return [self._event("error", **told)]

    @property
    def response(self) -> Json:
        """The response as far as it is known."""
        return dict(self._response)

    def _write(self, kind: str, text: str) -> list[Json]:
        """Add text to the item of that kind; begin one if another is being written."""
        events: list[Json] = []
        if self._open is None or self._open["type"] != kind:
            events = self._begin_text(kind)
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        name = (
            "response.output_text.delta" if kind == "message" else "response.reasoning_text.delta"
        )
        more: Json = {"logprobs": []} if kind == "message" else {}
        return [*events, self._event(name, **self._place, content_index=0, delta=text, **more)]

    def _begin_text(self, kind: str) -> list[Json]:
        events = self._close()
        item: Json
        if kind == "message":
            item = {"id": _name("msg"), "type": "message", "role": "assistant", "content": []}
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"id": _name("rs"), "type": "reasoning", "summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        events += self._begin(item)
        item["content"] = [part]
        added = self._event(
            "response.content_part.added", **self._place, content_index=0, part=dict(part)
        )
        return [*events, added]

    def _call(self, call: Mapping[str, Any]) -> list[Json]:
        """Take a call, or the next part of its arguments."""
        index = call.get("index", len(self._calls))
        function = call.get("function") or {}
        events: list[Json] = []
        if index not in self._calls:
            events = self._close()
            self._calls[index] = {
                "id": _name("fc"),
                "type": "function_call",
                "call_id": call.get("id"),
                "name": function.get("name"),
                "arguments": "",
            }
            events += self._begin(self._calls[index])
        text = function.get("arguments") or ""
        self._calls[index]["arguments"] += text
        if text:
            name = "response.function_call_arguments.delta"
            events.append(self._event(name, **self._place, delta=text))
        return events

    def _begin(self, item: Json) -> list[Json]:
        self._open = item
        item["status"] = "in_progress"
        self._output.append(item)
        index = len(self._output) - 1
        return [self._event("response.output_item.added", output_index=index, item=dict(item))]

    def _close(self) -> list[Json]:
        """End the item that is being written."""
        item, events = self._open, []
        if item is None:
            return []
        item["status"] = "completed"
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            name = "response.function_call_arguments.done"
            events.append(self._event(name, **self._place, **told))
        else:
            part = item["content"][0]
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            place = {**self._place, "content_index": 0}
            more: Json = {"logprobs": []} if kind == "output_text" else {}
            done = self._event(f"response.{kind}.done", **place, text=part["text"], **more)
            events += [done, self._event("response.content_part.done", **place, part=dict(part))]
        index = len(self._output) - 1
        events.append(self._event("response.output_item.done", output_index=index, item=dict(item)))
        self._open = None
        return events

    @property
    def _place(self) -> Json:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._output) - 1}

    def _event(self, kind: str, **content: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **content}


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
