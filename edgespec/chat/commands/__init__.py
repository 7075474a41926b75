"""Slash commands: find the one that a line names, run it, complete it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from edgespec.chat.commands import answers, stored, talk
from edgespec.chat.commands.command import Command
from edgespec.chat.conversation import Chat
from edgespec.chat.reader import Candidate
from edgespec.errors import UsageError

__all__ = ["COMMANDS", "Candidate", "completions", "run_command"]

_SPACE = re.compile(r"\s+")

_KEYS = (
    "Alt-Enter, or a backslash at the end of a line, begins another line.",
    "Ctrl-C stops an answer or discards the line; Ctrl-D ends the conversation.",
    "A message that begins with a slash: write it twice, //like this.",
)


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
    **talk.COMMANDS,
    **answers.COMMANDS,
    **stored.COMMANDS,
    "exit": Command("", "end the conversation (also /quit, /bye)", _exit),
}
"""By name, in the order of `/help`."""

_ALIASES = {"?": "help", "new": "reset", "clear": "reset", "quit": "exit", "bye": "exit"}
