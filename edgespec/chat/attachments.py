"""`/file`: put files before the next message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from edgespec.errors import UsageError
from edgespec.files import decode_text, read_at_most, reason
from edgespec.runtime.engine import Engine

__all__ = ["Attachment", "Attachments"]

_SHARE = 0.75
"""Share of the context that files may take: the rest is for the message and its answer."""

_MOST_BYTES_PER_TOKEN = 64  # to refuse what cannot fit without counting its tokens


class Attachment(NamedTuple):
    """A file to send.

    Attributes:
        tokens: how many it takes, by the model's own count.
    """

    name: str
    text: str
    tokens: int


class Attachments:
    """Files that wait for the next message."""

    def __init__(self) -> None:
        self._files: list[Attachment] = []

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the files, in their order."""
        return [file.name for file in self._files]

    def add(self, path: Path, engine: Engine) -> Attachment:
        """Read a file and add it.

        Raises:
            UsageError: it cannot be read, is no text, or does not fit beside the others.
        """
        room = int(engine.context_length * _SHARE) - sum(file.tokens for file in self._files)
        text = _read(path, engine.context_length)
        file = Attachment(path.name, text, len(engine.tokenize(_fenced(path.name, text))))
        if file.tokens > room:
            beside = " beside the other files" if self._files else ""
            raise UsageError(
                f"{path} has {file.tokens:,} tokens and {max(0, room):,} fit{beside}: "
                "give a part of it, or start again with a larger --ctx"
            )
        self._files.append(file)
        return file

    def clear(self) -> None:
        """Take all files back."""
        self._files = []

    def before(self, text: str) -> str:
        """Return the message with the files before it."""
        return "".join(_fenced(file.name, file.text) for file in self._files) + text


def _read(path: Path, capacity: int) -> str:
    try:
        data = read_at_most(path, capacity * _MOST_BYTES_PER_TOKEN)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{path} does not fit into the context: {error}") from None
    try:
        text = decode_text(data)
    except ValueError as error:
        raise UsageError(f"{path} {error}") from None
    if "\0" in text:
        raise UsageError(f"{path} is not text: it has zero bytes")
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text


def _fenced(name: str, text: str) -> str:
    """Put a text between fences that are longer than any in it."""
    longest = max(map(len, re.findall(r"^ *(`{3,})", text, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    return f"{name}:\n\n{fence}\n{text.rstrip()}\n{fence}\n\n"
