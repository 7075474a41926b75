"""The line editor of a terminal: history, completion, keys, and the user's own editor."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

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
from edgespec.chat.reader import Candidate, is_open, unquoted
from edgespec.errors import EdgespecError

__all__ = ["MessageHistory", "TerminalReader", "history_file"]


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
