"""Where messages come from: readers, the one for standard input, and files before a message."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from edgespec.errors import UsageError
from edgespec.files import read_text
from edgespec.runtime.engine import Engine

__all__ = ["Attachment", "Attachments", "Candidate", "PipeReader", "Reader", "is_open", "unquoted"]

_QUOTES = '"""'


class Candidate(NamedTuple):
    """One way to complete the text before the cursor.

    Attributes:
        text: replaces what was typed.
        typed: how many characters before the cursor it replaces.
        label: how the list shows it.
    """

    text: str
    typed: int
    label: str


class Reader(Protocol):
    """Gives one message after another."""

    def read(self) -> str:
        """Return the next message.

        Raises:
            EOFError: there are no more.
        """

    def revise(self, text: str) -> str | None:
        """Return a message as the user changed it; None if they gave up.

        Raises:
            UsageError: nobody is there to change it.
            EdgespecError: the user's editor failed.
        """


class PipeReader:
    """Reads each line of standard input as a message.

    A backslash at its end joins the next one; three quotes begin a message of many lines.
    """

    def __init__(self) -> None:
        self._number = 0

    def read(self) -> str:
        """Return the next message.

        Raises:
            EOFError: the input has ended.
            UsageError: a line is not UTF-8.
        """
        lines = [self._line()]
        while is_open("\n".join(lines)):
            try:
                lines.append(self._line())
            except EOFError:
                break
        if lines[0].lstrip().startswith(_QUOTES):
            return unquoted("\n".join(lines))
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            try:
                lines.append(self._line())
            except EOFError:
                break
        return "\n".join(lines)

    def revise(self, text: str) -> str | None:
        """Refuse: nobody is there to change anything.

        Raises:
            UsageError: always.
        """
        raise UsageError("/edit needs a terminal: send the message again as it should be")

    def _line(self) -> str:
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        self._number += 1
        try:
            return data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"standard input is not UTF-8 (byte 0x{data[error.start]:02x} in line "
                f"{self._number}): convert it first"
            ) from None


def is_open(text: str) -> bool:
    """Return whether a message begins with three quotes, and no others end it yet."""
    text = text.strip()
    return text.startswith(_QUOTES) and (len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES))


def unquoted(text: str) -> str:
    """Return a message without the three quotes before and behind it; it is never a command."""
    stripped = text.strip()
    if not stripped.startswith(_QUOTES):
        return text
    inside = stripped.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
    return f"/{inside.lstrip()}" if inside.lstrip().startswith("/") else inside


# -- files before a message ----------------------------------------------------------------------

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
