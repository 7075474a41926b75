"""Commands that bring something in: files, another model, another draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgespec.chat.commands.command import Candidate, Command, complete_path, file_of, fitting
from edgespec.registry.manifest import load_manifest

if TYPE_CHECKING:
    from edgespec.chat.loop import Chat

__all__ = ["COMMANDS"]

_NO_FILES = "none"
_DRAFTS = ("auto", "none", "ngram")


def _file(chat: Chat, argument: str) -> None:
    files = chat.attachments
    if argument == _NO_FILES:
        files.clear()
    elif argument:
        file = files.add(file_of(argument, "file"), chat.session.engine)
        chat.screen.note(f"{file.name}, {file.tokens:,} tokens, goes with the next message")
        return
    names = ", ".join(files.names)
    chat.screen.note(f"with the next message: {names}" if names else "no file is waiting")


def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.change_engine(lambda: chat.engines.change_model(argument))
    chat.screen.note(chat.summary)


def _draft(chat: Chat, argument: str) -> None:
    if argument:
        chat.change_engine(lambda: chat.engines.change_draft(argument))
    chat.screen.note(chat.summary)


def _complete_model(chat: Chat, typed: str) -> Iterator[Candidate]:
    yield from fitting(load_manifest().names, typed)
    yield from complete_path(chat, typed)


def _complete_draft(chat: Chat, typed: str) -> Iterator[Candidate]:
    yield from fitting(_DRAFTS, typed)
    yield from _complete_model(chat, typed)


COMMANDS = {
    "file": Command(
        "[FILE]",
        f"put a file before the next message ({_NO_FILES}: take all back)",
        _file,
        complete_path,
    ),
    "model": Command("[MODEL]", "show the model, or go on with another", _model, _complete_model),
    "draft": Command("[MODEL]", "show the draft, or use another", _draft, _complete_draft),
}
