"""Where messages come from: the line editor, standard input, and files before a message."""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import click
from platformdirs import user_data_path
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text.utils import fragment_list_to_text
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from edgespec.chat.characters import JOINER, sendable, unjoined
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import read_text
from edgespec.runtime.engine import Engine

__all__ = [
    "Attachment",
    "Attachments",
    "Candidate",
    "MessageHistory",
    "PipeReader",
    "Reader",
    "TerminalReader",
    "history_file",
    "is_open",
    "unquoted",
]

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


class TerminalReader:
    """A line editor with history and completion.

    Args:
        history: file of earlier messages; they are kept in memory only if there is none, or it
            cannot be used.
        complete: yields what may come next, given the text before the cursor.
        toolbar: returns a line to show below the message.
        warn: called with a line about a problem.
        echo: called with a message that was written elsewhere, to show it.
    """

    def __init__(
        self,
        history: Path | None,
        complete: Callable[[str], Iterator[Candidate]],
        toolbar: Callable[[], str],
        warn: Callable[[str], None],
        echo: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._echo = echo
        self._history = MessageHistory(history)
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            history=self._history,
            completer=_SlashCompleter(complete),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            key_bindings=_key_bindings(),
            bottom_toolbar=toolbar,
            input_processors=[_Unjoined()],
            style=Style.from_dict({"bottom-toolbar": "noreverse"}),
        )

    def read(self) -> str:
        """Return the next message. Ctrl-C discards what was typed; twice without, it ends.

        Raises:
            EOFError: the user wants to leave.
        """
        interrupted = False
        while True:
            if self._history.problem:
                self._warn(f"messages are not remembered: {self._history.problem}")
                self._history.problem = None
            try:
                return unquoted(sendable(self._session.prompt()))
            except KeyboardInterrupt:
                if self._session.default_buffer.text:
                    interrupted = False
                    continue
                if interrupted:
                    raise EOFError from None
                interrupted = True
                self._warn("Ctrl-C again, or Ctrl-D, ends the conversation")

    def revise(self, text: str) -> str | None:
        """Let the user change a message, in their editor or on the line; None if they gave up."""
        if _has_editor():
            changed = _edit_text(text)
            if not changed:
                return None
            changed = sendable(changed.rstrip("\n"))
            self._echo(changed)
            return changed
        try:
            return sendable(self._session.prompt(default=text))
        except (KeyboardInterrupt, EOFError):
            return None


def history_file() -> Path:
    """Return the file of earlier messages, in the user's data folder."""
    return user_data_path("edgespec", appauthor=False) / "chat_history"


class MessageHistory(FileHistory):
    """A history in a file; without a usable file, messages are remembered until the end only.

    Args:
        path: None to use no file.

    Attributes:
        problem: why the file is not used, until the user was told.
    """

    def __init__(self, path: Path | None) -> None:
        self.problem: str | None = None
        self._usable = path is not None
        super().__init__(path or os.devnull)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.open("r+b").close()
        except OSError as error:
            self._give_up(error)

    def load_history_strings(self) -> Iterable[str]:
        """Return messages of earlier conversations, newest first."""
        try:
            return list(super().load_history_strings()) if self._usable else []
        except OSError as error:
            self._give_up(error)
            return []

    def store_string(self, string: str) -> None:
        """Add a message to the file."""
        if not self._usable:
            return
        try:
            super().store_string(sendable(string))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._usable = False
        self.problem = f"{self.filename!s}: {error.strerror or error}"


class _Unjoined(Processor):
    """Shows joined emoji side by side: the cursor is then where the terminal has it."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Leave out what joins them; the message keeps it."""
        fragments = explode_text_fragments(transformation_input.fragments)
        text = fragment_list_to_text(fragments)
        if JOINER not in text:
            return Transformation(fragments)
        left_out = {
            place
            for place, character in enumerate(text)
            if character == JOINER and not unjoined(text[place : place + 2]).startswith(JOINER)
        }
        kept = [place for place in range(len(text)) if place not in left_out]
        return Transformation(
            [fragments[place] for place in kept],
            lambda place: bisect_left(kept, place),
            lambda place: kept[place] if place < len(kept) else len(text),
        )


class _SlashCompleter(Completer):
    """Completes slash commands and their arguments."""

    def __init__(self, complete: Callable[[str], Iterator[Candidate]]) -> None:
        self._complete = complete

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield what completes the text before the cursor."""
        for one in self._complete(document.text_before_cursor):
            yield Completion(one.text, start_position=-one.typed, display=one.label)


def _key_bindings() -> KeyBindings:
    """Make Enter send, and begin another line after a backslash, between quotes, and with Alt."""
    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


def _has_editor() -> bool:
    """Return whether VISUAL or EDITOR names an editor."""
    return bool(os.environ.get("VISUAL") or os.environ.get("EDITOR"))


def _edit_text(text: str) -> str | None:
    """Open the text in the user's editor; return it as saved, or None if it was not saved.

    Raises:
        EdgespecError: the editor failed.
    """
    try:
        return click.edit(text, extension=".md")
    except click.ClickException as error:
        raise EdgespecError(error.format_message()) from None
