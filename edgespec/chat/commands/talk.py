"""Commands that change how the conversation continues: settings, model, files, another try."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.chat.commands import Command, complete_path, file_of, fitting
from edgespec.chat.conversation import Chat
from edgespec.chat.reader import Candidate
from edgespec.chat.settings import (
    SETTING_NAMES,
    change_setting,
    setting_line,
    setting_lines,
    setting_values,
)
from edgespec.errors import UsageError
from edgespec.registry.manifest import load_manifest

__all__ = ["COMMANDS"]

_NO_SYSTEM = "none"
_NO_FILES = "none"
_DRAFTS = ("auto", "none", "ngram", "recycle")


def _reset(chat: Chat, argument: str) -> None:
    stored = chat.recorder.id
    chat.leave()
    chat.session.reset()
    kept = ", except for the system prompt" if chat.session.system else ""
    chat.screen.note(f"forgotten{kept}" + (f"; /resume {stored} brings it back" if stored else ""))


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.session.system = None if argument == _NO_SYSTEM else argument
        chat.record()
    prompt = chat.session.system
    chat.screen.note(f"system prompt: {prompt}" if prompt else "there is no system prompt")


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        for line in setting_lines(chat.session):
            chat.screen.note(line)
    elif value.strip():
        chat.screen.note(change_setting(chat.session, name, value.strip()))
        chat.record()
    else:
        chat.screen.note(setting_line(chat.session, name))


def _complete_set(chat: Chat, typed: str) -> Iterator[Candidate]:
    name, space, value = typed.partition(" ")
    return fitting(setting_values(name), value) if space else fitting(SETTING_NAMES, name)


def _retry(chat: Chat, argument: str) -> None:
    answered = chat.session.unanswered is None
    chat.answer(chat.session.retry)
    if answered and chat.session.sampling.greedy:
        chat.screen.note("at temperature 0 another seed changes nothing: see /set temperature")


def _edit(chat: Chat, argument: str) -> None:
    message = next((entry for entry in reversed(chat.entries) if entry.role == "user"), None)
    if message is None:
        raise UsageError("there is no message to edit")
    typed = chat.reader.revise(message.said)
    if typed is None or not typed.strip() or typed == message.said:
        chat.screen.note("nothing was changed")
        return
    files = message.content.removesuffix(message.said)
    chat.answer(lambda: chat.session.revise(files + typed), typed, message.details)


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
    "reset": Command("", "begin another conversation, keep the system prompt", _reset),
    "system": Command(
        "[TEXT]", f"show or change the system prompt ({_NO_SYSTEM}: remove)", _system
    ),
    "set": Command("[NAME [VALUE]]", "show or change sampling and limits", _set, _complete_set),
    "retry": Command("", "answer the last message again, with another seed", _retry),
    "edit": Command("", "change the last message and answer it again", _edit),
    "file": Command(
        "[FILE]",
        f"put a file before the next message ({_NO_FILES}: take all back)",
        _file,
        complete_path,
    ),
    "model": Command("[MODEL]", "show the model, or switch to another", _model, _complete_model),
    "draft": Command("[MODEL]", "show the draft, or use another", _draft, _complete_draft),
}
