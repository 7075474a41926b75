"""`/file`: put files before the next message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from edgespec.errors import UsageError
from edgespec.files import read_text
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
        most = engine.context_length * _MOST_BYTES_PER_TOKEN
        text = read_text(path, most, "does not fit into the context")
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


def _fenced(name: str, text: str) -> str:
    """Put a text between fences that are longer than any in it."""
    longest = max(map(len, re.findall(r"^ *(`{3,})", text, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    return f"{name}:\n\n{fence}\n{text.rstrip()}\n{fence}\n\n"
