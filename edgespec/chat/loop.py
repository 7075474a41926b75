"""The loop of a conversation: read a line from the terminal or a pipe, and do what it says."""

from __future__ import annotations

import sys

from edgespec.chat.commands import completions, run_command
from edgespec.chat.conversation import Chat
from edgespec.chat.engines import Engines
from edgespec.chat.reader import PipeReader, Reader
from edgespec.chat.restore import load_saved, resume
from edgespec.chat.savefile import SavedConversation
from edgespec.chat.screen import Screen
from edgespec.chat.settings import Settings
from edgespec.chat.store.archive import Journal
from edgespec.chat.store.events import Conversation
from edgespec.errors import EdgespecError
from edgespec.runtime.session import Session

__all__ = ["converse", "talk"]


def converse(
    engines: Engines,
    settings: Settings,
    *,
    system: str | None = None,
    show: bool = False,
    store: bool = True,
    saved: SavedConversation | None = None,
    stored: tuple[Journal | None, Conversation] | None = None,
) -> None:
    """Talk on standard input and output until the user leaves.

    Args:
        engines: has the engine to begin with.
        settings: of the answers.
        system: prompt; it replaces that of a conversation that is continued.
        show: mark every token by its origin.
        store: keep the conversation in the user's data folder.
        saved: a conversation to continue.
        stored: another one, as `open_stored` gives it.

    Raises:
        TemplateError: the model has no usable chat template.
        UsageError: standard input is not a terminal and not UTF-8.
        KeyboardInterrupt: Ctrl-C, unless in a terminal.
    """
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    session = Session(engines.engine, system, *settings[:2], accept=settings.accept)
    chat = Chat(engines, session, Screen(interactive=interactive, show=show), store=store)
    if interactive:
        chat.screen.note(chat.summary)
        chat.screen.note("/help lists commands, Ctrl-D ends")
    if saved is not None:
        load_saved(chat, saved)
    if stored is not None:
        resume(chat, *stored, settings)
    if system:
        session.system = system
    try:
        talk(chat, _terminal(chat, store) if interactive else PipeReader())
    finally:
        chat.end()


def talk(chat: Chat, reader: Reader) -> None:
    """Answer messages and carry out commands until there are no more.

    Raises: what `reader` raises, except for the end; KeyboardInterrupt unless interactive.
    """
    chat.reader = reader
    while chat.running:
        try:
            line = reader.read()
        except EOFError:
            return
        try:
            _take(chat, line)
        except EdgespecError as error:
            chat.screen.error(error)
        except KeyboardInterrupt:
            if not chat.screen.interactive:
                raise
            chat.screen.note("interrupted")


def _take(chat: Chat, line: str) -> None:
    text = line.strip()
    if text.startswith("/") and not text.startswith("//"):
        run_command(chat, text)
    elif text:
        chat.say(text[1:] if text.startswith("/") else line)


def _terminal(chat: Chat, store: bool) -> Reader:
    from edgespec.chat.line_editor import TerminalReader, history_file  # slow to import

    return TerminalReader(
        history_file() if store else None,
        lambda text: completions(chat, text),
        lambda: chat.summary,
        chat.screen.note,
        chat.screen.message,
    )
