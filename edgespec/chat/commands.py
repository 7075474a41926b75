"""Slash commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.chat.settings import SETTING_NAMES, change_setting, setting_lines
from edgespec.chat.status import statistics_lines
from edgespec.chat.storage import Conversation, load_conversation, save_conversation
from edgespec.errors import UsageError
from edgespec.runtime.session import Message

if TYPE_CHECKING:
    from edgespec.chat.loop import Chat

__all__ = ["COMMANDS", "Command", "completions", "restore", "run_command"]

_NO_SYSTEM = "none"
_KEYS = (
    "Alt-Enter, or a backslash at the end of a line, begins another line.",
    "Ctrl-C stops an answer or discards the line; Ctrl-D ends the conversation.",
    "A message that begins with a slash: write it twice, //like this.",
)


@dataclass(frozen=True)
class Command:
    """One slash command.

    Attributes:
        usage: its argument, for `/help`; empty if it takes none.
        help: what it does.
        run: does it, given what stands behind the name.
    """

    usage: str
    help: str
    run: Callable[[Chat, str], None]


def run_command(chat: Chat, line: str) -> None:
    """Carry out a line that begins with a slash.

    Raises:
        UsageError: no such command, or a wrong argument.
    """
    name, _, argument = line[1:].partition(" ")
    name, argument = _ALIASES.get(name.lower(), name.lower()), argument.strip()
    command = COMMANDS.get(name)
    if command is None:
        close = get_close_matches(name, [*COMMANDS, *_ALIASES], n=2)
        hint = " or ".join(f"/{word}" for word in close)
        hint = f"did you mean {hint}?" if close else "/help lists them"
        raise UsageError(f"there is no command /{name}: {hint}")
    if argument and not command.usage:
        raise UsageError(f"/{name} takes nothing behind it")
    command.run(chat, argument)


def completions(text: str) -> Iterator[str]:
    """Words that may come next, for what stands before the cursor."""
    *before, word = text.split(" ")
    if not before and word.startswith("/"):
        yield from (f"/{name}" for name in COMMANDS if name.startswith(word[1:]))
    if before == ["/set"]:
        yield from (name for name in SETTING_NAMES if name.startswith(word))


def restore(chat: Chat, conversation: Conversation) -> None:
    """Go on with a loaded conversation instead of the running one."""
    session = chat.session
    messages = list(conversation.messages)
    session.reset()
    if messages and messages[-1].role == "user":
        session.unanswered = messages.pop().content
    session.messages = messages
    turns = sum(message.role == "user" for message in conversation.messages)
    chat.screen.note(f"{turns} message{'' if turns == 1 else 's'} of yours, with the answers")
    if session.unanswered is not None:
        chat.screen.note("the last one has no answer yet: /retry asks again")
    if conversation.model != session.engine.model_name:
        chat.screen.note(f"the answers are of another model, {conversation.model}")


def _help(chat: Chat, argument: str) -> None:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        chat.screen.note(f"/{f'{name} {command.usage}':{width}}  {command.help}")
    for line in _KEYS:
        chat.screen.note(line)


def _reset(chat: Chat, argument: str) -> None:
    chat.session.reset()
    kept = ", except for the system prompt" if chat.session.system else ""
    chat.screen.note(f"forgotten{kept}")


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.session.system = None if argument == _NO_SYSTEM else argument
    prompt = chat.session.system
    chat.screen.note(f"system prompt: {prompt}" if prompt else "there is no system prompt")


def _save(chat: Chat, argument: str) -> None:
    session = chat.session
    path = _path("save", argument)
    messages = [*session.messages]
    if session.unanswered is not None:
        messages.append(Message("user", session.unanswered))
    conversation = Conversation(tuple(messages), session.engine.model_name, session.sampling)
    save_conversation(path, conversation)
    chat.screen.note(f"saved to {path}")


def _load(chat: Chat, argument: str) -> None:
    conversation = load_conversation(_path("load", argument))
    restore(chat, conversation)
    chat.session.sampling = conversation.sampling


def _path(command: str, argument: str) -> Path:
    if not argument:
        raise UsageError(f"give a file: /{command} FILE")
    return Path(argument)


def _retry(chat: Chat, argument: str) -> None:
    chat.answer(chat.session.retry)


def _stats(chat: Chat, argument: str) -> None:
    if chat.last is None:
        raise UsageError("there is no answer yet")
    for line in statistics_lines(chat.last):
        chat.screen.note(line)


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        for line in setting_lines(chat.session):
            chat.screen.note(line)
    elif value.strip():
        chat.screen.note(change_setting(chat.session, name, value.strip()))
    else:
        raise UsageError(f"give a value: /set {name} VALUE")


def _exit(chat: Chat, argument: str) -> None:
    chat.running = False


COMMANDS = {
    "help": Command("", "show this", _help),
    "reset": Command("", "forget the conversation, keep the system prompt", _reset),
    "system": Command(
        "[TEXT]", f"show or change the system prompt ({_NO_SYSTEM}: remove)", _system
    ),
    "save": Command("FILE", "write the conversation to a file", _save),
    "load": Command("FILE", "go on with a saved conversation", _load),
    "retry": Command("", "answer the last message again, with another seed", _retry),
    "stats": Command("", "show what was measured for the last answer", _stats),
    "set": Command("[NAME VALUE]", "show or change sampling parameters and limits", _set),
    "exit": Command("", "end the conversation (also /quit, /bye)", _exit),
}
"""By name, in the order of `/help`."""

_ALIASES = {"quit": "exit", "bye": "exit"}
