"""The loop of a conversation: read a line, and send it or run the slash command in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches

from edgespec.chat.archive import Journal
from edgespec.chat.commands import RUNNING, Command
from edgespec.chat.conversation import Chat, Engines
from edgespec.chat.events import Conversation
from edgespec.chat.reader import Candidate, PipeReader, Reader
from edgespec.chat.recorder import SavedConversation
from edgespec.chat.screen import Screen
from edgespec.chat.settings import Settings
from edgespec.chat.stored import STORED, load_saved, resume
from edgespec.errors import EdgespecError, UsageError
from edgespec.runtime.session import Session

__all__ = ["COMMANDS", "completions", "converse", "run_command", "run_loop"]

_SPACE = re.compile(r"\s+")

_KEYS = (
    "Alt-Enter, or a backslash at the end of a line, begins another line.",
    'A message that begins with """ continues over many lines, to the next """.',
    "Ctrl-C stops an answer or discards the line; Ctrl-D ends the conversation.",
    "A message that begins with a slash: write it twice, //like this.",
)


def converse(
    engines: Engines,
    settings: Settings,
    *,
    system: str | None = None,
    show: bool = False,
    store: bool = True,
    saved: SavedConversation | None = None,
    stored: tuple[Journal | None, Conversation] | None = None,
    lookup: bool = False,
) -> bool:
    """Talk on standard input and output until the user leaves.

    Without a terminal, return whether every message was answered.

    Args:
        engines: with the engine that answers first.
        settings: how to write answers.
        system: prompt; it replaces that of a conversation that is continued.
        show: mark every token by its origin.
        store: keep the conversation in the user's data folder.
        saved: a conversation to continue.
        stored: another one, as `open_stored` gives it.
        lookup: let answers copy from stored conversations.

    Raises:
        TemplateError: the model has no usable chat template.
        UsageError: standard input is not a terminal and not UTF-8.
        KeyboardInterrupt: Ctrl-C, unless in a terminal.
    """
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    session = Session(engines.engine, system, *settings[:2], accept=settings.accept)
    screen = Screen(interactive=interactive, show=show)
    chat = Chat(engines, session, screen, store=store, lookup=lookup)
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
        run_loop(chat, _terminal(chat, store) if interactive else PipeReader())
    finally:
        chat.end()
    return interactive or not chat.failed


def run_loop(chat: Chat, reader: Reader) -> None:
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
            chat.failed |= not _is_command(line.strip())
            chat.screen.error(error)
        except KeyboardInterrupt:
            if not chat.screen.interactive:
                raise
            chat.screen.note("interrupted")


def run_command(chat: Chat, line: str) -> None:
    """Run the command of a line that begins with a slash.

    Raises:
        UsageError: no such command, or a wrong argument.
    """
    word, *rest = _SPACE.split(line[1:], maxsplit=1)  # a prompt may begin on the next line
    word, argument = word.lower(), "".join(rest).strip()
    name = word.removesuffix("!")
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        close = get_close_matches(name, [*COMMANDS, *_ALIASES], n=2)
        hint = " or ".join(f"/{word}" for word in close)
        hint = f"did you mean {hint}?" if close else "/help lists them"
        raise UsageError(f"there is no command /{word}: {hint}")
    if argument and not command.usage:
        raise UsageError(f"/{name} takes no argument")
    run = command.run if word == name else command.force
    if run is None:
        raise UsageError(f"/{name} takes no exclamation mark")
    run(chat, argument)


def completions(chat: Chat, text: str) -> Iterator[Candidate]:
    """Yield what may come next, given the text before the cursor."""
    word, space, argument = text.partition(" ")
    if not word.startswith("/"):
        return
    if not space:
        for name, one in COMMANDS.items():
            if f"/{name}".startswith(word):
                more = " " if one.usage else ""
                yield Candidate(f"/{name}{more}", len(word), f"/{name}")
        return
    command = COMMANDS.get(word[1:].removesuffix("!"))
    if command is not None and command.complete is not None:
        yield from command.complete(chat, argument)


def _take(chat: Chat, line: str) -> None:
    text = line.strip()
    if _is_command(text):
        run_command(chat, text)
    elif text:
        chat.say(text[1:] if text.startswith("/") else line)


def _is_command(text: str) -> bool:
    return text.startswith("/") and not text.startswith("//")


def _terminal(chat: Chat, store: bool) -> Reader:
    from edgespec.chat.reader import TerminalReader, history_file  # slow to import

    return TerminalReader(
        history_file() if store else None,
        lambda text: completions(chat, text),
        lambda: chat.summary,
        chat.screen.note,
        chat.screen.message,
    )


def _help(chat: Chat, argument: str) -> None:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        chat.screen.note(f"/{f'{name} {command.usage}':{width}}  {command.help}")
    for line in _KEYS:
        chat.screen.note(line)


def _exit(chat: Chat, argument: str) -> None:
    chat.running = False


COMMANDS = {
    "help": Command("", "show this (also /?)", _help),
    **RUNNING,
    **STORED,
    "exit": Command("", "end the conversation (also /quit, /bye)", _exit),
}
"""By name, in the order of `/help`."""

_ALIASES = {"?": "help", "new": "reset", "clear": "reset", "quit": "exit", "bye": "exit"}
