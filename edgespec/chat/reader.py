"""Where messages come from: a line editor, or lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from edgespec.chat.characters import sendable
from edgespec.chat.commands import Candidate
from edgespec.chat.editor import edit_text, has_editor
from edgespec.errors import UsageError

__all__ = ["PipeReader", "Reader", "TerminalReader"]


class Reader(Protocol):
    """Gives one message after the other."""

    def read(self) -> str:
        """The next message.

        Raises:
            EOFError: there are no more.
        """

    def revise(self, text: str) -> str | None:
        """A message as the user has changed it; None if they gave up.

        Raises:
            UsageError: nobody is there to change it.
            EdgespecError: the user's editor failed.
        """


class PipeReader:
    """Reads a message from each line of standard input; a backslash at its end joins the next."""

    def __init__(self) -> None:
        self._number = 0

    def read(self) -> str:
        """The next message.

        Raises:
            EOFError: the input has ended.
            UsageError: a line is not UTF-8.
        """
        lines = [self._line()]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            try:
                lines.append(self._line())
            except EOFError:
                break
        return "\n".join(lines)

    def revise(self, text: str) -> str | None:
        """Nobody is there to change anything.

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


class TerminalReader:
    """A line editor with history and completion.

    Args:
        history: file of earlier messages; they are kept in memory only if there is none, or it
            cannot be used.
        complete: what may come next, for what stands before the cursor.
        toolbar: a line shown below the message that is edited.
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
        from prompt_toolkit import PromptSession
        from prompt_toolkit.shortcuts import CompleteStyle
        from prompt_toolkit.styles import Style

        from edgespec.chat.editing import SlashCompleter, key_bindings
        from edgespec.chat.history import MessageHistory

        self._warn = warn
        self._echo = echo
        self._history = MessageHistory(history)
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            history=self._history,
            completer=SlashCompleter(complete),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            key_bindings=key_bindings(),
            bottom_toolbar=toolbar,
            style=Style.from_dict({"bottom-toolbar": "noreverse"}),
        )

    def read(self) -> str:
        """The next message. Ctrl-C discards what was typed; twice in a row, it ends the input.

        Raises:
            EOFError: the user wants to leave.
        """
        interrupted = False
        while True:
            if self._history.problem:
                self._warn(f"messages are not remembered: {self._history.problem}")
                self._history.problem = None
            try:
                return sendable(self._session.prompt())
            except KeyboardInterrupt:
                if interrupted:
                    raise EOFError from None
                interrupted = True
                self._warn("Ctrl-C again, or Ctrl-D, ends the conversation")

    def revise(self, text: str) -> str | None:
        """A message as changed in the user's editor, or in the line editor if none is named."""
        if has_editor():
            changed = edit_text(text)
            if not changed:
                return None
            changed = sendable(changed.rstrip("\n"))
            self._echo(changed)
            return changed
        try:
            return sendable(self._session.prompt(default=text))
        except (KeyboardInterrupt, EOFError):
            return None
