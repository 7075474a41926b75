"""Slash commands by what they are about, what one is, and how to read its argument."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgespec.chat.conversation import Chat
from edgespec.chat.reader import Candidate
from edgespec.errors import UsageError

__all__ = ["Command", "complete_path", "file_of", "fitting"]


@dataclass(frozen=True)
class Command:
    """One slash command.

    Attributes:
        usage: its argument, for `/help`; empty if it takes none.
        help: what it does.
        run: does it, given the text after the name.
        complete: yields candidates for the text after the name.
        force: does it when an exclamation mark follows the name: writes over a file.
    """

    usage: str
    help: str
    run: Callable[[Chat, str], None]
    complete: Callable[[Chat, str], Iterator[Candidate]] | None = None
    force: Callable[[Chat, str], None] | None = None


def fitting(names: Iterable[str], typed: str) -> Iterator[Candidate]:
    """Return the names that begin with what was typed."""
    return (Candidate(name, len(typed), name) for name in names if name.startswith(typed))


def complete_path(chat: Chat, typed: str) -> Iterator[Candidate]:
    """Yield files and folders that begin with what was typed."""
    from prompt_toolkit.completion import CompleteEvent, PathCompleter
    from prompt_toolkit.document import Document

    found = PathCompleter(expanduser=True).get_completions(Document(typed), CompleteEvent())
    for one in found:
        slash = os.sep if one.display_text.endswith(os.sep) else ""
        yield Candidate(one.text + slash, -one.start_position, one.display_text)


def file_of(argument: str, command: str) -> Path:
    """Return the file that an argument names, also in the quotes that a terminal adds.

    Raises:
        UsageError: there is no argument.
    """
    if not argument:
        raise UsageError(f"give a file: /{command} FILE")
    quote = argument[0]
    if len(argument) > 2 and quote in "'\"" and argument.endswith(quote):
        argument = argument[1:-1]
    elif "\\ " in argument and not Path(argument).exists():
        argument = argument.replace("\\ ", " ")
    return Path(argument).expanduser()
