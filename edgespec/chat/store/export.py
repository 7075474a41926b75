"""A conversation for others: JSON that /load reads as well, or Markdown to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgespec.chat.store.events import Conversation, Entry
from edgespec.errors import UsageError

__all__ = ["as_json", "as_markdown", "exporter"]

Exporter = Callable[[Conversation], str]


def exporter(path: Path) -> Exporter:
    """What writes a file of this ending.

    Raises:
        UsageError: nothing does.
    """
    try:
        return {".json": as_json, ".md": as_markdown}[path.suffix.lower()]
    except KeyError:
        raise UsageError(f"{path}: the ending says what is written, .json or .md") from None


def as_json(conversation: Conversation) -> str:
    """As `/save` writes it, with times and figures beside."""
    system = conversation.system
    messages = [{"role": "system", "content": system}] if system else []
    messages += [_message(entry) for entry in conversation.entries]
    data = {
        "format": "edgespec-chat",
        "version": 1,
        "id": conversation.id,
        "title": conversation.title,
        "created": conversation.created,
        "model": conversation.model,
        "sampling": conversation.facts.get("settings", {}).get("sampling", {}),
        "messages": messages,
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def as_markdown(conversation: Conversation) -> str:
    """With a heading for every message."""
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


def _message(entry: Entry) -> dict[str, Any]:
    message: dict[str, Any] = {"role": entry.role, "content": entry.content, "time": entry.time}
    return {**message, "details": dict(entry.details)} if entry.details else message


def _model(details: Mapping[str, Any], usual: str) -> str:
    return str(details.get("model") or usual or "Model")
